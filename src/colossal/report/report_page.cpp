#include "colossal/report/report_page.h"

#include "colossal/report/html.h"

namespace colossal::report {
namespace {

const char* const kPageStyle = R"css(
:root { color-scheme: light dark; --page: #f4f5f7; --card: #ffffff; --edge: #e1e4e9; --ink: #1b2230; --soft: #5b6577;
  --grid: #e8eaee; --first: #2563c9; --second: #c2570c; --third: #1d8a5b; --fourth: #8a4bc4; --fifth: #b03a78; --sixth: #0b7a8c; --seventh: #77712a; --bad: #c81e3a;
  --c1: #3033e8; --c2: #bc8217; --c3: #16583a; --c4: #e25f83; --c5: #0a8bbe; --c6: #5919a0; --c7: #66520a; --c8: #6c1060;
  --rank-light: 42%;
  --shade0: #e3edfb; --shade1: #e3f4ea; --shade2: #f9eedd; --shade3: #f1e8f8; }
@media (prefers-color-scheme: dark) { :root { --page: #11151c; --card: #1a2029; --edge: #2b3441; --ink: #e7ebf2;
  --soft: #9aa6b8; --grid: #28303c; --first: #6ea8fe; --second: #f0a35e; --third: #5fcf9c; --fourth: #c39af0; --fifth: #f08fbf; --sixth: #5cc8da; --seventh: #cfc667; --bad: #ff6b81;
  --c1: #9ea5fa; --c2: #e0712c; --c3: #3c9da7; --c4: #9f68fa; --c5: #fad835; --c6: #ee9f8d; --c7: #89f5ee; --c8: #c7e579;
  --rank-light: 66%;
  --shade0: #20344f; --shade1: #1f3d30; --shade2: #44361f; --shade3: #382a47; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
header, main { max-width: 1180px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 32px; }
header span { color: var(--soft); font-size: 13px; letter-spacing: .06em; text-transform: uppercase; }
h1 { margin: 2px 0 20px; font-size: 27px; line-height: 1.25; overflow-wrap: anywhere; }
h2 { margin: 0 0 10px; font-size: 16px; }
.card { background: var(--card); border: 1px solid var(--edge); border-radius: 10px; padding: 16px 18px; margin: 0 0 16px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(145px, 1fr)); gap: 12px; margin-bottom: 16px; }
.tile { display: flex; flex-direction: column; margin: 0; padding: 12px 14px; }
.tile b { font-size: 22px; line-height: 1.3; font-variant-numeric: tabular-nums; }
.tile small, .mesh small { color: var(--soft); font-size: 12px; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(480px, 100%), 1fr)); gap: 16px; margin-bottom: 16px; }
.plot { margin: 0; padding: 12px 14px 6px; position: relative; }
.plot figcaption { display: flex; flex-wrap: wrap; gap: 4px 14px; align-items: baseline; }
.plot svg { display: block; width: 100%; height: auto; }
.legend { display: flex; gap: 12px; font-size: 13px; color: var(--soft); }
.key::before { content: ""; display: inline-block; width: 14px; height: 3px; border-radius: 2px; margin-right: 5px; vertical-align: middle; background: var(--first); }
.key.second::before { background: var(--second); } .key.third::before { background: var(--third); }
.key.fourth::before { background: var(--fourth); } .key.fifth::before { background: var(--fifth); }
.key.sixth::before { background: var(--sixth); } .key.seventh::before { background: var(--seventh); }
.key.faint::before { opacity: .35; }
.warn { color: var(--bad); font-size: 13px; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.line.first { stroke: var(--first); } .line.second { stroke: var(--second); }
.line.third { stroke: var(--third); } .line.fourth { stroke: var(--fourth); } .line.fifth { stroke: var(--fifth); }
.line.sixth { stroke: var(--sixth); } .line.seventh { stroke: var(--seventh); }
.line.faint { stroke: var(--first); opacity: .3; stroke-width: 1; }
circle.first, circle.faint { fill: var(--first); } circle.second { fill: var(--second); }
circle.third { fill: var(--third); } circle.fourth { fill: var(--fourth); } circle.fifth { fill: var(--fifth); }
circle.sixth { fill: var(--sixth); } circle.seventh { fill: var(--seventh); }
.bad { fill: var(--bad); }
.grid { stroke: var(--grid); } .axis { stroke: var(--soft); }
.cursor { stroke: var(--soft); stroke-dasharray: 3 3; }
.tick, .name { fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums; }
output { position: absolute; top: 10px; right: 14px; padding: 1px 8px; border-radius: 6px; background: var(--card);
  font-size: 13px; font-variant-numeric: tabular-nums; pointer-events: none; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); gap: 0 16px; align-items: start; }
.scroll { overflow-x: auto; }
table { border-collapse: separate; border-spacing: 4px; }
th { text-align: left; font-weight: 500; color: var(--soft); font-size: 13px; white-space: nowrap; padding-right: 10px; }
.mesh td { border: 1px solid var(--edge); border-radius: 6px; padding: 6px 12px; text-align: center; white-space: nowrap; }
.mesh td small { display: block; }
.shade0 { background: var(--shade0); } .shade1 { background: var(--shade1); } .shade2 { background: var(--shade2); } .shade3 { background: var(--shade3); }
.numbers { border-spacing: 0; width: 100%; } .numbers th, .numbers td { text-align: right; padding: 2px 0 2px 10px; white-space: nowrap; }
.numbers td { font-size: 14px; font-variant-numeric: tabular-nums; }
.facts { border-spacing: 0 3px; } .facts th { vertical-align: top; } .facts td { overflow-wrap: anywhere; }
pre { margin: 0; font: 13px/1.55 ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-x: auto; }
.sample { white-space: pre-wrap; overflow-wrap: anywhere; }
mark { background: none; color: var(--first); font-weight: 600; }
.config { columns: 3 300px; column-gap: 28px; white-space: pre-wrap; overflow-wrap: anywhere; }
.config div { break-inside: avoid; padding-bottom: 10px; }
.config b { color: var(--second); } .config i { color: var(--first); font-style: normal; }
.chart { min-width: 0; } .chart svg { touch-action: pan-y; }
.chart .line { stroke: var(--c); } .chart .line.raw { opacity: .28; stroke-width: 1; }
.chart circle { fill: var(--c); stroke: none; } .chart circle.raw { opacity: .28; }
.number { fill: var(--c); font-size: 12px; font-weight: 700;
  stroke: var(--card); stroke-width: 3px; paint-order: stroke; }
.legend { flex-wrap: wrap; }
.chart .key::before { content: none; }
.key i { display: inline-block; width: 16px; border-top: 3px solid var(--c); margin-right: 5px; vertical-align: middle; }
.key i.dashed { border-top-style: dashed; }
.tip { position: absolute; top: 40px; max-width: calc(100% - 8px); padding: 6px 10px; border-radius: 8px;
  background: var(--card); border: 1px solid var(--edge); box-shadow: 0 2px 8px rgb(0 0 0 / .18); font-size: 12px;
  font-variant-numeric: tabular-nums; pointer-events: none; z-index: 1; white-space: nowrap; }
.tip[hidden], .controls[hidden] { display: none; }
.tip b, .tip span { display: block; }
.tip i { display: inline-block; width: 9px; height: 9px; border-radius: 50%; background: var(--c); margin-right: 6px; }
.controls { display: flex; flex-wrap: wrap; gap: 8px 22px; align-items: center; position: sticky; top: 0; z-index: 2;
  padding: 10px 18px; font-size: 14px; }
.controls label { display: inline-flex; align-items: center; gap: 6px; white-space: nowrap; }
.controls fieldset { border: 0; margin: 0; padding: 0; display: flex; gap: 12px; align-items: center; }
.controls legend { float: left; padding: 0; margin-right: 2px; color: var(--soft); }
.controls input[type=range] { width: 130px; } .controls b { width: 2.6em; font-variant-numeric: tabular-nums; }
input { accent-color: var(--first); }
.missing { border-left: 4px solid var(--second); } .missing p { margin: 2px 0; overflow-wrap: anywhere; }
.badge { display: inline-block; min-width: 1.6em; padding: 0 5px; border-radius: 5px; text-align: center; font-size: 12px;
  font-weight: 700; border: 2px solid var(--c); }
.c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); } .c4 { --c: var(--c4); }
.c5 { --c: var(--c5); } .c6 { --c: var(--c6); } .c7 { --c: var(--c7); } .c8 { --c: var(--c8); }
.run { display: inline-flex; gap: 8px; align-items: center; white-space: nowrap; }
.rows { border-spacing: 0; width: 100%; font-size: 14px; }
.rows th, .rows td { padding: 4px 14px 4px 0; border-bottom: 1px solid var(--edge); text-align: left; vertical-align: top; }
.rows tr:last-child > * { border-bottom: 0; }
.rows td { font-variant-numeric: tabular-nums; } .runs td { white-space: nowrap; }
.starts td, .rows td:first-child { white-space: nowrap; } .starts td:last-child { white-space: normal; min-width: 300px; }
.keys td { min-width: 60px; max-width: 340px; overflow-wrap: anywhere; } .keys .other { font-weight: 600; }
code { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.samples h2 { display: flex; gap: 8px; align-items: center; overflow-wrap: anywhere; }
details { border-top: 1px solid var(--edge); padding: 6px 0; } details:first-of-type { border-top: 0; }
summary { cursor: pointer; color: var(--soft); font-size: 14px; } details pre { padding: 6px 0 4px; }
@media (max-width: 560px) { header, main { padding: 0 10px; } header { padding-top: 18px; } h1 { font-size: 22px; }
  .card { padding: 12px; } .tiles { grid-template-columns: 1fr 1fr; gap: 8px; }
  .controls { position: static; padding: 10px 12px; } }
)css";

// Finds the point of each series that is nearest to the pointer and writes its step and value above the plot. For a
// series without a point at that step, it also writes the step of the value. 58 and 546 are the left and right edge of
// the frame in a drawing of width 560 (plot.cpp).
const char* const kScript = R"js(
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
  svg.addEventListener('pointerleave', () => { cursor.setAttribute('x1', -9); cursor.setAttribute('x2', -9); out.textContent = ''; });
}
)js";

}  // namespace

std::string render_page(const std::string& kind, const std::string& title, const std::string& body,
                        const char* script) {
  return "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><meta name='viewport' "
         "content='width=device-width,initial-scale=1'><meta http-equiv='Content-Security-Policy' "
         "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\"><title>" +
         html_text(title) + "</title>\n<style>" + kPageStyle + "</style></head><body>\n<header><span>" +
         html_text(kind) + "</span><h1>" + html_text(title) + "</h1></header>\n<main>" + body + "</main>\n<script>" +
         (script ? script : kScript) + "</script></body></html>\n";
}

}  // namespace colossal::report
