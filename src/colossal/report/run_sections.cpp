#include "colossal/report/run_sections.h"

#include <cmath>
#include <ctime>

#include "colossal/base/base64.h"
#include "colossal/base/bytes.h"
#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/html.h"
#include "colossal/base/join.h"
#include "colossal/base/progress.h"
#include "colossal/report/plot.h"

namespace colossal::report {
namespace {

constexpr size_t kShownSamples = 40;
constexpr size_t kSampleBytes = 20'000;
constexpr int64_t kPictureBytes = int64_t{4} << 20;  // of a picture on the page itself
constexpr size_t kOpenSamples = 1;                   // samples per run that are expanded; a click opens the others

std::string head(const std::string& text) { return concat("<th>", html_text(text), "</th>"); }
std::string cell(const std::string& text) { return concat("<td>", html_text(text), "</td>"); }

/// Returns the number of a run in its colour.
std::string badge(size_t run) { return concat("<span class='badge c", run % 8 + 1, "'>", run + 1, "</span>"); }

std::string quoted_word(const std::string& word) {
  const bool plain = !word.empty() && word.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789-_=./:,+@%") == std::string::npos;
  if (plain) return word;
  std::string out = "'";
  for (const char c : word) c == '\'' ? out += "'\\''" : out += c;
  return out + "'";
}

std::string start_kind(const StartRecord& start) {
  if (start.kind == "resume") return concat("resumed after step ", start.after);
  return start.kind == "overwrite" ? "started, overwriting an older run" : "started";
}

/// Returns "training.steps" of the config, or 0.
int64_t steps_wanted(const RecordedRun& run) {
  try {
    const auto values = ConfigDocument::parse(run.config, "config.toml").values();
    const auto at = values.find("training.steps");
    if (at == values.end()) return 0;
    const int64_t* steps = std::get_if<int64_t>(&at->second.value);
    return steps ? *steps : 0;
  } catch (const Error&) {
    return 0;
  }
}

/// Returns the indices of the samples to show: all, or kShownSamples evenly spread ones including the first and the
/// last.
std::vector<size_t> shown_samples(size_t count) {
  std::vector<size_t> shown;
  if (count <= kShownSamples) {
    for (size_t i = 0; i < count; ++i) shown.push_back(i);
    return shown;
  }
  for (size_t i = 0; i < kShownSamples; ++i) shown.push_back(i * (count - 1) / (kShownSamples - 1));
  return shown;
}

/// Returns the first `limit` bytes of `text`, without a partial character at the end.
std::string cut_text(const std::string& text, size_t limit) {
  if (text.size() <= limit) return text;
  size_t end = limit;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + " ...";
}

/// Returns a picture of the run folder on the page itself, or a link to a file. `path`: within the folder.
std::string file_of(const std::string& folder, const std::string& path) {
  const std::string link = concat("<a href='", html_text(path), "'>", html_text(path), "</a>");
  const bool is_png = path.ends_with(".png"), is_gif = path.ends_with(".gif");
  if (!is_png && !is_gif) return link;
  try {
    return concat("<img alt='", html_text(path), "' src='data:image/", is_png ? "png" : "gif", ";base64,",
                  base64(read_file(concat(folder, "/", path), kPictureBytes)), "'/>");
  } catch (const Error&) {  // it was removed, or is too large for the page
    return link;
  }
}

std::string sample_of(const RecordedRun& run, const SampleRecord& sample, bool open) {
  const std::string prompt = html_text(cut_text(sample.prompt, kSampleBytes));
  const std::string content = sample.file.empty() ? concat("<pre class='sample'><mark>", prompt, "</mark>",
                                                           html_text(cut_text(sample.text, kSampleBytes)), "</pre>")
                                                  : concat("<figure class='sample'>", file_of(run.name, sample.file),
                                                           "<figcaption>", prompt, "</figcaption></figure>");
  return concat("<details", open ? " open" : "", "><summary>step ", sample.step, "</summary>", content, "</details>");
}

std::string samples_of(const RecordedRun& run) {
  std::string out;
  const std::vector<size_t> shown = shown_samples(run.samples.size());
  for (size_t i = shown.size(); i-- > 0;)
    out += sample_of(run, run.samples[shown[i]], shown.size() - i <= kOpenSamples);
  if (shown.size() < run.samples.size())
    out += concat("<p>", run.samples.size() - shown.size(), " more samples are in history.jsonl</p>");
  return out;
}

std::string keys_table(const std::vector<RecordedRun>& runs, const std::vector<ConfigKeyRow>& keys,
                       bool ConfigKeyRow::* which) {
  std::string out;
  for (const ConfigKeyRow& row : keys) {
    if (!(row.*which)) continue;
    out += concat("<tr>", head(row.key), cell(row.default_value.empty() ? "-" : row.default_value));
    for (const std::string& value : row.values)
      out += concat("<td", !value.empty() && value != row.default_value ? " class='other'" : "", ">",
                    html_text(value.empty() ? "-" : value), "</td>");
    out += "</tr>";
  }
  if (out.empty()) return "";
  std::string heads = "<tr><th>key</th><th>default</th>";
  for (size_t i = 0; i < runs.size(); ++i) heads += concat("<th>", runs.size() > 1 ? badge(i) : "this run", "</th>");
  return concat("<div class='scroll'><table class='rows keys'>", heads, "</tr>", out, "</table></div>");
}

}  // namespace

std::string utc_time(double seconds) {
  constexpr double kLatest = 253402300799;  // the end of the year 9999
  if (!(seconds >= 0 && seconds <= kLatest)) return "?";
  char text[64] = "?";
  const auto whole = static_cast<std::time_t>(seconds);
  std::tm utc{};
  if (::gmtime_r(&whole, &utc) != nullptr) std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M UTC", &utc);
  return text;
}

std::string missing_section(const std::vector<RecordedRun>& runs) {
  std::string out;
  const auto note = [&](size_t run, const std::string& what) {
    out += concat("<p>", runs.size() > 1 ? badge(run) + " " : "", html_text(what), "</p>");
  };
  for (size_t i = 0; i < runs.size(); ++i) {
    const int64_t done = runs[i].steps.empty() ? 0 : runs[i].steps.numbers().back(), wanted = steps_wanted(runs[i]);
    if (done < wanted)
      note(i, concat(done, " of ", wanted, " steps are done: the run still trains, or it was stopped"));
    for (const std::string& what : runs[i].missing) note(i, what);
  }
  return out.empty() ? "" : concat("<section class='card missing'>", out, "</section>\n");
}

std::string runs_section(const std::vector<RecordedRun>& runs) {
  std::string out = "<section class='card'><h2>Runs</h2><div class='scroll'><table class='rows runs'><tr>";
  for (const char* name :
       {"run", "started", "steps", "loss", "evaluation loss", "tokens per second", "peak memory", "training", "layout"})
    out += head(name);
  out += "</tr>";
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunSummary summary = summarize(runs[i].steps);
    const StartRecord* start = runs[i].starts.empty() ? nullptr : &runs[i].starts.back();
    out += concat("<tr><td><label class='run'><input type='checkbox' name='run' data-view value='", i, "' checked/>",
                  badge(i), html_text(runs[i].name), "</label></td>",
                  cell(start ? utc_time(runs[i].starts.front().time) : "-"), cell(concat(summary.steps)),
                  cell(summary.loss ? short_number(*summary.loss) : "-"),
                  cell(summary.eval_loss ? short_number(*summary.eval_loss) : "-"),
                  cell(short_number(std::round(summary.tokens_per_second))), cell(readable_bytes(summary.peak_bytes)),
                  cell(readable_duration(summary.seconds)), cell(start ? layout_text(start->mesh) : "-"), "</tr>");
  }
  return out + "</table></div></section>\n";
}

std::string controls_section() {
  return "<section class='card controls' id='controls' hidden><fieldset id='x'><legend>x axis</legend>"
         "<label><input type='radio' name='x' value='step' data-view checked/>step</label>"
         "<label><input type='radio' name='x' value='time' data-view/>time</label>"
         "<label><input type='radio' name='x' value='tokens' data-view/>tokens</label></fieldset>"
         "<label><input type='checkbox' id='log' data-view/>logarithmic y</label>"
         "<label>smoothing <input type='range' id='smooth' min='0' max='0.99' step='0.01' value='0.3' data-view/>"
         "<b id='smooth-value'>0.3</b></label></section>\n";
}

std::string samples_section(const std::vector<RecordedRun>& runs) {
  std::string out;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].samples.empty()) continue;
    out += "<section class='card samples'><h2>Samples";
    if (runs.size() > 1) out += concat(" ", badge(i), html_text(runs[i].name));
    out += concat("</h2>", samples_of(runs[i]), "</section>\n");
  }
  return out.empty() || runs.size() == 1 ? out : concat("<section class='pair'>", out, "</section>\n");
}

std::string keys_section(const std::vector<RecordedRun>& runs, const std::vector<ConfigKeyRow>& keys) {
  std::string out;
  if (runs.size() > 1) {
    const std::string between = keys_table(runs, keys, &ConfigKeyRow::differs_between_runs);
    out += concat("<section class='card' id='between'><h2>Keys that differ between the runs</h2>",
                  between.empty() ? "<p>All runs have the same config.</p>" : between, "</section>\n");
  }
  const std::string others = keys_table(runs, keys, &ConfigKeyRow::differs_from_default);
  if (!others.empty())
    out += concat("<section class='card' id='changed'><h2>Keys that differ from their defaults</h2>", others,
                  "</section>\n");
  return out;
}

std::string starts_section(const std::vector<RecordedRun>& runs) {
  std::string out;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const StartRecord& start : runs[i].starts) {
      const std::string version =
          start.revision.empty() ? start.version : concat(start.version, ", revision ", start.revision);
      out += concat("<tr>", runs.size() > 1 ? concat("<td>", badge(i), "</td>") : "", cell(utc_time(start.time)),
                    cell(start_kind(start)), cell(version), "<td><code>",
                    html_text(join(start.command, " ", quoted_word)), "</code></td></tr>");
    }
  }
  if (out.empty()) return "";
  return concat("<section class='card' id='starts'><h2>Starts</h2><div class='scroll'><table class='rows starts'><tr>",
                runs.size() > 1 ? "<th>run</th>" : "",
                "<th>time</th><th>how</th><th>version</th><th>command line</th></tr>", out,
                "</table></div></section>\n");
}

}  // namespace colossal::report
