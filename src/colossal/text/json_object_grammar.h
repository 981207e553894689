// The grammar of a JSON object: members in a given order, then others.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "colossal/text/grammar.h"
#include "colossal/text/json_grammar_parts.h"

namespace colossal::text {

struct ObjectGrammar {
  struct Member {
    std::string name;
    int rule;  ///< of the value
    bool is_required;
  };
  std::vector<Member> members{};  ///< in the order in which they are written
  std::optional<int> extra{};     ///< the rule of any other member, with its name; none: there are no others
  int64_t least = 0;              ///< number of members
  std::optional<int64_t> most{};  ///< number of members; none: any
};

/// The node of the object, which ends its rule. Two extra members may have the same name, so that all of them together
/// count as one towards `least`.
int object_node(Grammar& grammar, JsonParts& json, const ObjectGrammar& object);

}  // namespace colossal::text
