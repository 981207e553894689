#include "colossal/memory/tiers/eviction.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "colossal/base/error.h"

namespace colossal::memory {
namespace {

/// The candidate that `key` gives the greatest of.
template <class Key>
size_t greatest(const std::vector<Candidate>& candidates, const Key& key) {
  const auto less = [&](const Candidate& a, const Candidate& b) { return key(a) < key(b); };
  return static_cast<size_t>(std::max_element(candidates.begin(), candidates.end(), less) - candidates.begin());
}

struct FarthestUse final : Eviction {
  static constexpr const char* name = "auto";
  size_t choose(const std::vector<Candidate>& candidates) const override {
    return greatest(candidates, [](const Candidate& c) {
      return std::pair(c.until.value_or(std::numeric_limits<size_t>::max()), ~c.used);
    });
  }
};

struct LeastRecentlyUsed final : Eviction {
  static constexpr const char* name = "lru";
  size_t choose(const std::vector<Candidate>& candidates) const override {
    return greatest(candidates, [](const Candidate& c) { return ~c.used; });
  }
};

struct LastComer final : Eviction {
  static constexpr const char* name = "static";
  size_t choose(const std::vector<Candidate>& candidates) const override {
    return greatest(candidates, [](const Candidate& c) { return c.number; });
  }
};

template <class Visit>
void for_each_policy(const Visit& visit) {
  visit(FarthestUse()), visit(LeastRecentlyUsed()), visit(LastComer());
}

}  // namespace

std::vector<std::string> eviction_names() {
  std::vector<std::string> names;
  for_each_policy([&](const auto& policy) { names.emplace_back(policy.name); });
  return names;
}

std::unique_ptr<Eviction> make_eviction(const std::string& name) {
  std::unique_ptr<Eviction> made;
  std::string names;
  for_each_policy([&]<class Policy>(const Policy& policy) {
    if (name == policy.name) made = std::make_unique<Policy>();
    names += (names.empty() ? "" : ", ") + std::string(policy.name);
  });
  require(made != nullptr, "memory", "placement must be one of ", names, ": got ", name);
  return made;
}

}  // namespace colossal::memory
