#include "colossal/memory/tiers/eviction_policy.h"

#include <limits>

#include "colossal/base/error.h"
#include "colossal/base/join.h"

namespace colossal::memory {
namespace {

struct FarthestUse final : EvictionPolicy {
  static constexpr const char* name = "auto";
  Key key(const Candidate& c) const override {
    return {c.next_use.value_or(std::numeric_limits<uint64_t>::max()), ~c.used};
  }
};

struct LeastRecentlyUsed final : EvictionPolicy {
  static constexpr const char* name = "lru";
  Key key(const Candidate& c) const override { return {~c.used, 0}; }
};

struct LastComer final : EvictionPolicy {
  static constexpr const char* name = "static";
  Key key(const Candidate& c) const override { return {c.number, 0}; }
};

template <class Visit>
void for_each_policy(const Visit& visit) {
  visit(FarthestUse()), visit(LeastRecentlyUsed()), visit(LastComer());
}

}  // namespace

std::vector<std::string> eviction_policy_names() {
  std::vector<std::string> names;
  for_each_policy([&](const auto& policy) { names.emplace_back(policy.name); });
  return names;
}

std::unique_ptr<EvictionPolicy> make_eviction_policy(const std::string& name) {
  std::unique_ptr<EvictionPolicy> made;
  for_each_policy([&]<class Policy>(const Policy& policy) {
    if (name == policy.name) made = std::make_unique<Policy>();
  });
  require(made != nullptr, "memory", "placement must be one of ", join(eviction_policy_names()), ": got ", name);
  return made;
}

}  // namespace colossal::memory
