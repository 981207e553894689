#include "colossal/report/predicted_step.h"

#include <algorithm>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/html.h"
#include "colossal/base/json.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"
#include "colossal/base/number.h"
#include "colossal/report/recorded_run.h"

namespace colossal::report {
namespace {

/// What a report uses of a plan::Prediction, which is in a higher layer.
struct StoredStep {
  struct Role {
    int64_t resident_bytes = 0;
    void fields(Fields& f) { f.member("resident_bytes", resident_bytes); }
  };
  double step_seconds = 0;
  int64_t peak_bytes = 0;
  std::vector<Role> roles;

  void fields(Fields& f) {
    f.member("step_seconds", step_seconds);
    f.member("peak_bytes", peak_bytes);
    f.member("roles", roles);
  }
};

/// Returns the values of a metric after the first step, which includes the warm-up.
std::vector<double> later_values(const RecordedSteps& steps, const char* name) {
  const MetricColumn* column = steps.find(name);
  if (!column) return {};
  std::vector<double> values = column->values;
  if (values.size() > 1) values.erase(values.begin());
  return values;
}

std::string text_of_seconds(double seconds) { return text_of(seconds, 3) + " s"; }

std::string measured_seconds(const RecordedSteps& steps) {
  std::vector<double> values = later_values(steps, "seconds");
  if (values.empty()) return "-";
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return text_of_seconds(*middle);
}

std::string measured_bytes(const RecordedSteps& steps, const char* name) {
  const std::vector<double> values = later_values(steps, name);
  if (values.empty()) return "-";
  return readable_bytes(static_cast<int64_t>(std::clamp(*std::max_element(values.begin(), values.end()), 0.0, 9e18)));
}

}  // namespace

PredictedStep parse_predicted_step(const std::string& text) {
  const nlohmann::json object = parse_json_object(text, "the prediction", "report");
  try {
    const auto stored = read_stored<StoredStep>(object, "report");
    PredictedStep step{.seconds = stored.step_seconds, .device_bytes = stored.peak_bytes};
    for (const StoredStep::Role& role : stored.roles)
      step.resident_bytes = std::max(step.resident_bytes, role.resident_bytes);
    return step;
  } catch (const Error& error) {
    throw Error("report", concat("a prediction must have the members that `colossal plan --json` writes: ",
                                 error.message(), "; run the training again to write it"));
  }
}

std::vector<PredictedRow> predicted_rows(const RecordedRun& run) {
  if (!run.prediction) return {};
  const PredictedStep& predicted = *run.prediction;
  return {{"step", text_of_seconds(predicted.seconds), measured_seconds(run.steps)},
          {"device memory", readable_bytes(predicted.device_bytes), measured_bytes(run.steps, kDevicePeak)},
          {"resident memory", readable_bytes(predicted.resident_bytes), measured_bytes(run.steps, kResidentPeak)}};
}

std::string predicted_text(const RecordedRun& run) {
  std::string text;
  for (const PredictedRow& row : predicted_rows(run))
    text += concat(row.name, std::string(17 - std::min<size_t>(16, row.name.size()), ' '), "predicted ", row.predicted,
                   ", measured ", row.measured, "\n");
  return text;
}

std::string predicted_section(const RecordedRun& run) {
  const auto rows = predicted_rows(run);
  if (rows.empty()) return "";
  std::string out =
      "<section class='card'><h2>Predicted and measured</h2><table><tr><th></th><th>predicted</th><th>measured</th>"
      "</tr>";
  for (const PredictedRow& row : rows)
    out += concat("<tr><th>", html_text(row.name), "</th><td>", html_text(row.predicted), "</td><td>",
                  html_text(row.measured), "</td></tr>");
  return out + "</table></section>\n";
}

}  // namespace colossal::report
