"""What training code needs of a batch: masks and borders that keep its samples apart, and the loss.

The adapters for trainers stand in modules of their own (`zvl.trainers.transformers`, ...), which load those packages.
"""

from zvl.trainers._checks import accumulation_steps
from zvl.trainers.attention import attention_mask, flex_block_mask, varlen
from zvl.trainers.token_loss import loss

__all__ = ["accumulation_steps", "attention_mask", "flex_block_mask", "loss", "varlen"]
