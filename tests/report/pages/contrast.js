// Text whose contrast with what is behind it is below the 4.5 of WCAG 2.1, level AA (1.4.3).
() => {
  const rgb = (text) => text.match(/[\d.]+/g).map(Number);
  const linear = (share) => share <= .04045 ? share / 12.92 : ((share + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * linear(r / 255) + .7152 * linear(g / 255) + .0722 * linear(b / 255);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const color = rgb(getComputedStyle(node).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const low = new Set();
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.checkVisibility() || node.closest("option, script")) continue;
    const [a, b] = [light(rgb(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05);
    if (ratio < 4.5) low.add(`${node.tagName}.${node.className}: ${ratio.toFixed(2)} ${node.textContent.slice(0, 30)}`);
  }
  return [...low];
}
