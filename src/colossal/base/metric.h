// One measurement of a training step, with all that files, plots and the progress line need to show it.
//
//   Metric rmse{.name = "rmse", .value = 0.25, .unit = "m", .plot = "Error", .line = "rmse %.3f"};
//
// A step is a list of these rows. The members of metrics.jsonl, the scalars of TensorBoard, the progress line and the
// plots follow from the rows, so a new measurement is one row (report/step_metrics.h). This header does not need
// LibTorch.
#pragma once
#include <cstdint>
#include <string>
#include <variant>

namespace colossal {

/// One row: a name, a value, and how to show it.
struct Metric {
  using Value = std::variant<int64_t, double>;

  /// The member in metrics.jsonl. Dots nest it: "tiers.host_bytes" is a member of the object "tiers".
  /// Parts consist of letters, digits, `_` and `-`. A step has at most one row of a name.
  std::string name;
  /// The value. Rank 0 writes its own value; integers are written as integers. All ranks have the same value, except
  /// for times.
  Value value;
  /// The unit: "nats", "m", ... ("" = none). Three units change how values are shown: "bytes", "s", and "share" (0 to
  /// 1).
  std::string unit{};
  /// The title of the plot ("" = no plot). Rows with the same title share a plot, which has the unit of the first row.
  std::string plot{};
  /// The name of the curve in its plot ("" = the row's name).
  std::string legend{};
  /// The tag in TensorBoard ("" = train/NAME, "-" = no scalar). If the unit is bytes and the tag ends in "_gigabytes",
  /// the scalar is in units of 1e9 bytes.
  std::string tag{};
  /// The printf format in the progress line ("" = not shown). It has one conversion: e, f, g, d (integers) or %s. The
  /// conversion %s prints a size of bytes or a duration of seconds for people, such as "1.4 GiB" or "3m 20s". A share
  /// is shown in percent if the format has %%. Rows with the same format are added up and shown once.
  std::string line{};

  bool operator==(const Metric&) const = default;
};

/// Returns the value as a double. Integers beyond 2^53 are rounded.
inline double number_of(const Metric& metric) {
  return std::visit([](auto value) { return static_cast<double>(value); }, metric.value);
}

}  // namespace colossal
