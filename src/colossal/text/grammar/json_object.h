// The grammar of a JSON object: members in a given order, followed by further members.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "colossal/text/grammar/grammar.h"
#include "colossal/text/grammar/json_parts.h"

namespace colossal::text {

/// The members of a JSON object and their number.
struct ObjectGrammar {
  struct Member {
    std::string name;
    int rule;  ///< rule of the member's value
    bool is_required;
  };
  std::vector<Member> members{};  ///< in the order of the text
  std::optional<int> extra{};     ///< rule of any further member, including its name; no value = no further members
  int64_t min = 0;                ///< minimum number of members
  std::optional<int64_t> max{};   ///< maximum number of members; no value = no limit
};

/// Returns the node of the object, which ends its rule. Two further members may have the same name, so all of them
/// together count as one towards `min`.
int object_node(Grammar& grammar, JsonParts& json, const ObjectGrammar& object);

}  // namespace colossal::text
