"use strict";
(() => {
  const readout = document.getElementById("readout");
  const axes = (position) => {
    const numbers = position.split(" ");
    return numbers.length === 3 ? `t ${numbers[0]}  h ${numbers[1]}  w ${numbers[2]}` : `position ${position}`;
  };
  let marked = null;
  const clear = () => {
    if (marked) marked.classList.remove("on");
    marked = null;
  };
  const mark = (element, text) => {
    clear();
    marked = element;
    element.classList.add("on");
    readout.textContent = text;
  };

  // A stretch of text. What is not written on it follows from its neighbours.
  const token = (element) => {
    const { i, d, p, l } = element.dataset;
    const loss = l ? `label ${l}` : element.closest("mark") ? "carries loss" : "no loss";
    mark(element, `token ${i}  id ${d}${p ? "  " + axes(p) : ""}  ${loss}`);
  };

  // A token of an image: a cell of its grid where there is one.
  const cell = (figure, row, column) => {
    const [rows, columns] = figure.dataset.grid.split(" ").map(Number);
    const [time, height, width] = figure.dataset.p.split(" ").map(Number);
    row = Math.min(Math.max(row, 0), rows - 1);
    column = Math.min(Math.max(column, 0), columns - 1);
    figure.dataset.at = `${row} ${column}`;
    const box = figure.querySelector(".cell");
    box.style.left = `${(100 * column) / columns}%`;
    box.style.top = `${(100 * row) / rows}%`;
    box.style.width = `${100 / columns}%`;
    box.style.height = `${100 / rows}%`;
    const place = Number(figure.dataset.i) + row * columns + column;
    const where = `t ${time}  h ${height + row}  w ${width + column}`;
    mark(box, `token ${place}  ${where}  row ${row + 1} of ${rows}, column ${column + 1} of ${columns}`);
  };

  const point = (event) => {
    const word = event.target.closest(".words b");
    if (word) return token(word);
    const shot = event.target.closest("figure[data-grid] .shot");
    if (!shot) return undefined;
    const figure = shot.closest("figure");
    const [rows, columns] = figure.dataset.grid.split(" ").map(Number);
    const area = shot.getBoundingClientRect();
    const row = Math.floor(((event.clientY - area.top) / area.height) * rows);
    const column = Math.floor(((event.clientX - area.left) / area.width) * columns);
    return cell(figure, row, column);
  };
  document.addEventListener("pointermove", point);
  document.addEventListener("pointerdown", point);

  const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      clear();
      readout.textContent = "";
      return;
    }
    const step = STEPS[event.key];
    const place = document.activeElement;
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    if (place.matches("figure[data-grid]")) {
      const [row, column] = (place.dataset.at || "0 0").split(" ").map(Number);
      cell(place, row + step[0], column + step[1]);
      event.preventDefault();
    } else if (place.matches(".words") && step[1]) {
      const words = [...place.querySelectorAll("b")];
      const next = words[words.indexOf(marked) + step[1]] || words[0];
      if (!next) return;
      token(next);
      next.scrollIntoView({ block: "nearest" });
      event.preventDefault();
    }
  });
  document.addEventListener("focusin", (event) => {
    if (event.target.matches("figure[data-grid]")) {
      const [row, column] = (event.target.dataset.at || "0 0").split(" ").map(Number);
      cell(event.target, row, column);
    }
  });
})();
