for (const plot of document.querySelectorAll('.plot')) {
  const data = plot.querySelector('script'); if (!data) continue;
  const { label, low, high, series } = JSON.parse(data.textContent);
  const svg = plot.querySelector('svg'), cursor = svg.querySelector('.cursor'), out = plot.querySelector('output');
  svg.addEventListener('pointermove', event => {
    const box = svg.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * 560;
    const wanted = low + (Math.min(Math.max(at, 58), 546) - 58) / 488 * (high - low);
    let step = null;
    const values = series.map(line => {
      let best = 0;
      line.x.forEach((x, i) => { if (Math.abs(x - wanted) < Math.abs(line.x[best] - wanted)) best = i; });
      if (step === null) step = line.x[best];
      return line.y[best] + (line.x[best] === step ? '' : ` @${line.x[best]}`);
    });
    const x = 58 + (step - low) / (high - low) * 488;
    cursor.setAttribute('x1', x); cursor.setAttribute('x2', x);
    out.textContent = `${label} ${step}: ${values.join(' / ')}`;
  });
  svg.addEventListener('pointerleave', () => {
    cursor.setAttribute('x1', -9); cursor.setAttribute('x2', -9); out.textContent = '';
  });
}
