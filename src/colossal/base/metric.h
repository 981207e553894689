// One measurement of a step, with everything that files and people need to show it.
//
//   Metric rmse{.name = "rmse", .value = 0.25, .unit = "m", .plot = "Error", .line = "rmse %.3f"};
//
// A step is a list of these rows. The members of metrics.jsonl, the scalars of TensorBoard, the progress line and the
// plots follow from the rows, so a new measurement is one row (report/step_metrics.h). No torch.
#pragma once
#include <cstdint>
#include <string>
#include <variant>

namespace colossal {

struct Metric {
  using Value = std::variant<int64_t, double>;

  /// The member in metrics.jsonl. Dots nest it: "tiers.host_bytes" is a member of the object "tiers".
  /// Parts are letters, digits, `_` and `-`, and there is no second row of the name in a step.
  std::string name;
  /// Rank 0 writes its value, and integers as integers. Times apart, all ranks have the same value.
  Value value;
  /// "nats", "m", ... ("": none). Three units change how values are shown: "bytes", "s", and "share" (0 to 1).
  std::string unit{};
  /// The title of the plot ("": none). Rows with the same title share the plot, whose unit is that of the first.
  std::string plot{};
  /// The name of the curve in its plot ("": the row's name).
  std::string legend{};
  /// The tag of TensorBoard ("": train/NAME, "-": no scalar). The scalar of a row of bytes whose tag ends in
  /// "_gigabytes" is in units of 1e9 bytes.
  std::string tag{};
  /// The printf format of the progress line ("": none), with one conversion of the families e, f, g, d (integers) or
  /// %s: a size of bytes or a duration of seconds, as people read them. A share is shown in percent if the format has
  /// %%. Rows with the same format are added up and shown once.
  std::string line{};

  bool operator==(const Metric&) const = default;
};

/// The value as a double. Integers beyond 2^53 are rounded.
inline double number_of(const Metric& metric) {
  return std::visit([](auto value) { return static_cast<double>(value); }, metric.value);
}

}  // namespace colossal
