#include "colossal/run/objectives/alignment/reference.h"

#include <filesystem>

#include "colossal/base/run_folder.h"
#include "colossal/run/low_rank_adapter.h"
#include "colossal/run/objectives/alignment/keys.h"
#include "colossal/run/objectives/alignment/reference_keys.h"
#include "colossal/run/objectives/alignment/rollout_keys.h"
#include "colossal/run/unused_keys.h"

namespace colossal::run {
namespace {

ReferenceKeys reference_keys(const OwnTables& tables) { return tables.as<ReferenceKeys>(kReference); }

}  // namespace

bool has_reference(const OwnTables& tables) {
  const auto keys = tables.as<AlignmentKeys>("alignment");
  const std::string& method = keys.method;
  if (draws_answers(method)) return completed(keys, tables.as<RolloutKeys>(kRollout)).policy.kl > 0;
  return method == "dpo" || method == "ipo" || method == "kto";
}

FurtherModel reference_of(const Config& config, const OwnTables& tables) {
  const ReferenceKeys keys = reference_keys(tables);
  if (!keys.from.empty() || !keys.name.empty()) return {.name = kReference};
  const LowRankKeys adapter = adapter_keys(config);
  const bool is_base = adapter.kind != "none" && adapter.from.empty();
  return {.name = kReference, .use = is_base ? ModelUse::WithoutAdapters : ModelUse::Original};
}

std::vector<FurtherModel> reference_models(const Config& config, const OwnTables& tables, const models::ModelShape&) {
  const ReferenceKeys keys = reference_keys(tables);
  const bool compares = has_reference(tables), draws = draws_answers(tables.as<AlignmentKeys>("alignment").method);
  refuse_unused_keys(kReference, describe_config(keys), describe_config(ReferenceKeys()),
                     {{"from", compares, draws ? "alignment.kl above 0" : "alignment.method dpo, ipo or kto"},
                      {"name", compares, draws ? "alignment.kl above 0" : "alignment.method dpo, ipo or kto"},
                      {"precompute", compares && !draws, "alignment.method dpo, ipo or kto"},
                      {"cache", compares && keys.precompute, "reference.precompute"}});
  if (!compares || keys.precompute) return {};
  return {reference_of(config, tables)};
}

bool starts_at_reference(const Config& config, const OwnTables& tables) {
  const std::string from = reference_keys(tables).from;
  if (!reference_keys(tables).name.empty()) return false;
  const LowRankKeys adapter = adapter_keys(config);
  const bool is_dropped = !adapter.from.empty() && adapter.dropout > 0;  // trained matrices then compute something else
  const bool is_same = from == config.model.from && adapter.from.empty() && adapter.base == "model";
  return (from.empty() || is_same) && !is_dropped;
}

std::string reference_cache(const Config& config, const OwnTables& tables) {
  const std::string cache = reference_keys(tables).cache;
  if (!cache.empty()) return cache;
  const RunFolder folder(config.run.folder);
  std::error_code ignored;
  return std::filesystem::exists(folder.next_reference(), ignored) ? folder.next_reference() : folder.reference();
}

}  // namespace colossal::run
