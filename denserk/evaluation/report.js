"use strict";
(() => {
  // Everything is readable without this script; it sorts, filters and shortens the table.
  const printed = [];
  addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("#moved > details:not([open])")) {
      part.open = true;
      printed.push(part);
    }
  });
  addEventListener("afterprint", () => {
    for (const part of printed.splice(0)) part.open = false;
  });
  const reveal = () => {
    const part = location.hash && document.getElementById(location.hash.slice(1));
    if (part && part.tagName === "DETAILS") {
      part.open = true;
      part.scrollIntoView();
    }
  };
  addEventListener("hashchange", reveal);
  reveal();

  const table = document.getElementById("queries");
  if (!table) return;
  const { reference, places, values } = JSON.parse(document.getElementById("values").textContent);
  const control = (name) => document.getElementById(name);
  const chosen = (name, otherwise) => (control(name) ? control(name).value : otherwise);
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const rows = [...body.rows].map((element, place) => ({
    element,
    place,
    words: element.cells[0].textContent.toLowerCase(),
    id: (element.cells[0].querySelector("a") || element.cells[0].firstChild).textContent,
    values: [],
    difference: null,
  }));
  const several = heads.length > 2;
  let sorted = null; // {column, up}; the page's own order until a heading is pressed

  const plain = (value) => (value === null ? "–" : value.toFixed(places));
  const signed = (value) => {
    if (value === null) return "–";
    const text = Math.abs(value).toFixed(places);
    return Number(text) === 0 ? text : (value > 0 ? "+" : "−") + text;
  };

  function differenceOf(found, other) {
    const from = found[reference];
    if (from === null) return null;
    const runs = other < 0 ? found.map((_, run) => run).filter((run) => run !== reference) : [other];
    let widest = null;
    for (const run of runs) {
      if (found[run] === null) continue;
      const difference = found[run] - from;
      if (widest === null || Math.abs(difference) > Math.abs(widest)) widest = difference;
    }
    return widest;
  }

  function compute() {
    const ofMeasure = values[chosen("measure", Object.keys(values)[0])];
    const other = Number(chosen("other", "-1"));
    for (const row of rows) {
      row.values = ofMeasure.map((ofRun) => ofRun[row.place]);
      row.values.forEach((value, run) => {
        row.element.cells[run + 1].textContent = plain(value);
      });
      if (!several) continue;
      row.difference = differenceOf(row.values, other);
      const cell = row.element.cells[row.values.length + 1];
      cell.textContent = signed(row.difference);
      cell.className = "number" + (row.difference > 0 ? " up" : row.difference < 0 ? " down" : "");
    }
  }

  const keyOf = (row, column) => {
    if (column === 0) return row.id;
    return column <= row.values.length ? row.values[column - 1] : row.difference;
  };

  function compare(one, two) {
    if (!sorted) {
      const size = (row) => (several ? -Math.abs(row.difference) : row.values[0]);
      return size(one) - size(two) || one.place - two.place;
    }
    const [a, b] = [keyOf(one, sorted.column), keyOf(two, sorted.column)];
    if (a === null || b === null) return (a === null) - (b === null) || one.place - two.place;
    const order = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
    return (sorted.up ? order : -order) || one.place - two.place;
  }

  function wanted(row) {
    const sign = chosen("sign", "all");
    if (sign === "up" && !(row.difference > 0)) return false;
    if (sign === "down" && !(row.difference < 0)) return false;
    if (sign === "same" && row.difference !== 0) return false;
    const words = chosen("words", "").toLowerCase().split(/\s+/);
    return words.every((word) => row.words.includes(word));
  }

  function show() {
    const found = rows.filter(wanted).sort(compare);
    const limit = Number(chosen("limit", "0")) || found.length;
    const shown = found.slice(0, limit);
    body.replaceChildren(...shown.map((row) => row.element));
    control("count").textContent =
      `${shown.length.toLocaleString("en")} of ${found.length.toLocaleString("en")} queries shown` +
      (found.length < rows.length ? `; ${rows.length.toLocaleString("en")} in all` : "");
    heads.forEach((head, column) => {
      if (sorted && sorted.column === column) {
        head.setAttribute("aria-sort", sorted.up ? "ascending" : "descending");
      } else {
        head.removeAttribute("aria-sort");
      }
    });
  }

  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    button.disabled = false;
    button.addEventListener("click", () => {
      const again = sorted && sorted.column === column;
      sorted = { column, up: again ? !sorted.up : column === 0 };
      show();
    });
  });
  const form = control("controls");
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", (event) => {
    if (event.target.id === "measure" || event.target.id === "other") compute();
    show();
  });
  compute();
  show();
})();
