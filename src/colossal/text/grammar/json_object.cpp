#include "colossal/text/grammar/json_object.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "colossal/base/json.h"

namespace colossal::text {
namespace {

constexpr int64_t kMaxCounted = 2000;  // maximum number of members that are counted

class ObjectWriter {
 public:
  ObjectWriter(Grammar& grammar, JsonParts& json, const ObjectGrammar& object)
      : grammar_(grammar),
        json_(json),
        object_(object),
        max_counted_(std::min(object.max.value_or(std::max<int64_t>(object.min, 1)), kMaxCounted)),
        close_(json.padding(grammar.literal("}", Grammar::kReturn))) {}

  int node() {
    const auto size = static_cast<int64_t>(object_.members.size());
    std::vector<int> after;  // nodes indexed by the number of members written so far, up to the last count that matters
    for (int64_t count = 0; count <= std::min(size, max_counted_); ++count)
      after.push_back(others(count, count, false));
    for (int64_t i = size; i-- > 0;) {
      const ObjectGrammar::Member& member = object_.members[static_cast<size_t>(i)];
      const std::string name = nlohmann::json(member.name).dump() + ":";
      std::vector<int> before;
      for (int64_t count = 0; count <= std::min(i, max_counted_); ++count) {
        std::vector<int> ways;
        if (!member.is_required) ways.push_back(after[static_cast<size_t>(count)]);
        if (const std::optional<int64_t> next = counted(count)) {
          const int value = json_.space(grammar_.call(member.rule, after[static_cast<size_t>(*next)]));
          ways.push_back(separated(count, grammar_.literal(name, value)));
        }
        before.push_back(grammar_.either(std::move(ways)));
      }
      after = std::move(before);
    }
    return grammar_.literal("{", after[0]);
  }

 private:
  /// Returns the count after one more member; no value if no further member is allowed.
  std::optional<int64_t> counted(int64_t count) const {
    if (count < max_counted_) return count + 1;
    return object_.max ? std::nullopt : std::optional(count);
  }
  int separated(int64_t count, int member) {
    return count > 0 ? grammar_.literal(",", json_.space(member)) : json_.padding(member);
  }

  /// Returns the node that follows the ordered members, after `distinct` names and `count` members.
  int others(int64_t distinct, int64_t count, bool has_extra) {
    const auto [at, is_new] = others_.try_emplace({std::min(distinct, object_.min), count, has_extra}, 0);
    if (!is_new) return at->second;
    const int node = at->second = grammar_.reserve();
    std::vector<int> ways;
    if (distinct >= object_.min) ways.push_back(close_);
    const std::optional<int64_t> next = counted(count);
    if (object_.extra && next) {
      const int rest = others(distinct + (has_extra ? 0 : 1), *next, true);
      ways.push_back(separated(count, grammar_.call(*object_.extra, rest)));
    }
    grammar_.define(node, std::move(ways));
    return node;
  }

  Grammar& grammar_;
  JsonParts& json_;
  const ObjectGrammar& object_;
  int64_t max_counted_;
  int close_;
  std::map<std::tuple<int64_t, int64_t, bool>, int> others_;
};

}  // namespace

int object_node(Grammar& grammar, JsonParts& json, const ObjectGrammar& object) {
  return ObjectWriter(grammar, json, object).node();
}

}  // namespace colossal::text
