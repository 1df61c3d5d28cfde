(function () {
  "use strict";
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const config = {
    responsive: true,
    displaylogo: false,
    showTips: false,
    // Named one by one: the default bar also offers to send the figure to a server.
    modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
  };

  function colours(value) {
    // "@token" becomes the theme's colour; only keys that hold colours are looked at.
    const style = getComputedStyle(root);
    const token = (name) => style.getPropertyValue("--" + name.slice(1)).trim();
    const isToken = (item) => typeof item === "string" && item[0] === "@";
    const fill = (item, key) => {
      if (key === "colorscale") return item.map(([at, name]) => [at, token(name)]);
      if (Array.isArray(item)) return item.map((one) => (typeof one === "object" ? fill(one) : one));
      if (item === null || typeof item !== "object") {
        return /color$/.test(key || "") && isToken(item) ? token(item) : item;
      }
      return Object.fromEntries(Object.entries(item).map(([name, one]) => [name, fill(one, name)]));
    };
    return fill(value);
  }

  function say(text) {
    const trouble = document.getElementById("trouble");
    trouble.textContent = text + " Every figure's numbers are in the table beside it.";
    trouble.hidden = false;
  }

  async function unpack(base64) {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  function run(code) {
    const script = document.createElement("script");
    script.textContent = code;
    document.head.append(script);
  }

  async function draw(element) {
    const { data, layout } = colours(figures[element.dataset.figure]);
    const narrow = innerWidth < 640;
    for (const one of narrow ? layout.annotations || [] : []) one.text = one.short || one.text;
    await window.Plotly.react(element, data, layout, { ...config, displayModeBar: narrow ? false : "hover" });
    element.dataset.state = "drawn";
  }

  async function drawAll() {
    for (const element of document.querySelectorAll("[data-figure]")) {
      try {
        await draw(element);
      } catch (error) {
        element.dataset.state = "failed";
        root.dataset.error = String(error);
        say("A figure could not be drawn: " + error + ".");
      }
    }
  }

  async function start() {
    const packed = document.getElementById("plotly").textContent;
    if (!packed) return;
    if (typeof DecompressionStream === "undefined") {
      say("This browser is too old to draw the figures.");
      return;
    }
    run(await unpack(packed));
    if (!window.Plotly) {
      say("The figures could not be drawn: this page may not run scripts.");
      return;
    }
    await drawAll();
  }

  function isDark() {
    if (root.dataset.theme) return root.dataset.theme === "dark";
    return matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function themes() {
    const button = document.getElementById("theme");
    const name = () => (button.textContent = isDark() ? "Light" : "Dark");
    button.hidden = false;
    name();
    const redraw = () => {
      name();
      if (window.Plotly) drawAll();
    };
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      try {
        localStorage.setItem("tracelens-theme", root.dataset.theme);
      } catch (error) {
        // Without storage the choice lasts as long as the page.
      }
      redraw();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  }

  function key(row, column) {
    const cell = row.cells[column];
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
  }

  function compare(one, other) {
    if (typeof one === "number" && typeof other === "number") return one - other;
    if (typeof one === typeof other) return one.localeCompare(other);
    return typeof one === "number" ? -1 : 1;
  }

  function sort(table, column, heading) {
    const down = heading.getAttribute("aria-sort") !== "descending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows].map((row) => [key(row, column), row]);
    rows.sort((one, other) => (down ? -1 : 1) * compare(one[0], other[0]));
    table.tBodies[0].append(...rows.map((pair) => pair[1]));
  }

  function sortable(table) {
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => sort(table, column, heading));
    });
  }

  function printing() {
    // Paper has no folds: open them all, and close again what was closed.
    let opened = [];
    window.addEventListener("beforeprint", () => {
      opened = [...document.querySelectorAll("details:not([open])")];
      opened.forEach((details) => (details.open = true));
    });
    window.addEventListener("afterprint", () => {
      opened.forEach((details) => (details.open = false));
    });
  }

  themes();
  document.querySelectorAll("table.sortable").forEach(sortable);
  printing();
  start();
})();
