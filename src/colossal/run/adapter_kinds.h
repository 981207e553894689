// The kinds of [adapter] that give a model parts of their own, where low-rank adapters change its layers: ControlNets,
// learned words and IP-adapters. Each is a row with the keys that it reads.
//
//   if (const AdapterKind* kind = run::adapter_kind(keys.kind)) return run::adapter_of(*kind, keys, shape);
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "colossal/models/shape.h"
#include "colossal/nn/adapter.h"
#include "colossal/run/config.h"
#include "colossal/run/low_rank_keys.h"

namespace colossal::run {

/// A kind of adapter. All members but `complete` are required.
struct AdapterKind {
  std::string name{};               ///< value of adapter.kind
  std::vector<std::string> keys{};  ///< keys of [adapter] that it reads besides `kind`; others are refused
  /// Checks that a model has the parts. Errors ("adapter"): it has not.
  std::function<void(const models::ModelShape&)> check{};
  /// Returns true for the name of a parameter that trains and is saved. All others are frozen and come from the base.
  std::function<bool(const std::string&)> is_own{};
  /// Returns the keys with defaults of the kind; null = the keys stay.
  std::function<LowRankKeys(const Config&, LowRankKeys)> complete{};
};

/// Returns the row of that kind; null for "none" and for kinds of low-rank adapters. It lives as long as the program.
const AdapterKind* adapter_kind(const std::string& name);

/// Returns the adapter of a run of that kind: its parts alone train and are saved.
/// Errors ("adapter"): those of AdapterKind::check; keys of [adapter] that are of other kinds.
nn::Adapter adapter_of(const AdapterKind& kind, const LowRankKeys& keys, const models::ModelShape& shape);

}  // namespace colossal::run
