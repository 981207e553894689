#include "colossal/report/metric_names.h"

#include "colossal/base/error.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"
#include "colossal/base/known_metrics.h"

namespace colossal::report {
namespace {

constexpr int64_t kMaxNamesBytes = 16 << 20;

}  // namespace

void MetricEntry::fields(Fields& f) {
  f.optional(unit.empty()).member("unit", unit);
  f.optional(plot.empty()).member("plot", plot);
  f.optional(legend.empty()).member("legend", legend);
}

MetricNames read_metric_names(const std::string& path) {
  MetricNames names;
  const nlohmann::json object = read_json_object(path, "metrics", {.bytes = kMaxNamesBytes});
  for (const auto& [name, entry] : object.items()) {
    try {
      names.emplace(name, read_stored<MetricEntry>(entry, "metrics"));
    } catch (const Error&) {
      throw Error("metrics", concat(path, ": `", printable(name),
                                    "` must be an object of texts (unit, plot, legend); remove the file"));
    }
  }
  return names;
}

std::string to_json(const MetricNames& names) {
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  for (const auto& [name, entry] : names) all[name] = to_json_object(entry);
  return all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

MetricEntry entry_of(const MetricNames& names, const std::string& name) {
  if (const auto at = names.find(name); at != names.end()) return at->second;
  if (const auto known = find_known_metric(name)) return {known->unit, known->plot, known->legend};
  return {.plot = name};
}

}  // namespace colossal::report
