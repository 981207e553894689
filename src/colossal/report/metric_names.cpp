#include "colossal/report/metric_names.h"

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/base/known_metrics.h"

namespace colossal::report {
namespace {

constexpr int64_t kMaxNamesBytes = 16 << 20;

}  // namespace

MetricNames read_metric_names(const std::string& path) {
  MetricNames names;
  const nlohmann::json object = read_json_object(path, "metrics", {.bytes = kMaxNamesBytes});
  for (const auto& [name, entry] : object.items()) {
    const auto text = [&](const char* member) {
      require(entry.is_object() && (!entry.contains(member) || entry.at(member).is_string()), "metrics", path, ": `",
              printable(name), "` must be an object of texts (unit, plot, legend); remove the file");
      return entry.value(member, "");
    };
    names.emplace(name, MetricEntry{text("unit"), text("plot"), text("legend")});
  }
  return names;
}

std::string to_json(const MetricNames& names) {
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  for (const auto& [name, entry] : names) {
    nlohmann::ordered_json members = nlohmann::ordered_json::object();
    if (!entry.unit.empty()) members["unit"] = entry.unit;
    if (!entry.plot.empty()) members["plot"] = entry.plot;
    if (!entry.legend.empty()) members["legend"] = entry.legend;
    all[name] = members;
  }
  return all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

MetricEntry entry_of(const MetricNames& names, const std::string& name) {
  if (const auto at = names.find(name); at != names.end()) return at->second;
  if (const auto known = find_known_metric(name)) return {known->unit, known->plot, known->legend};
  return {.plot = name};
}

}  // namespace colossal::report
