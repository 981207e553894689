#include "colossal/text/verifiers/verifier.h"

#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/base/suggest.h"
#include "colossal/text/verifiers/built_in.h"
#include "colossal/text/verifiers/comparisons.h"

namespace colossal::text {

Verifiers& Verifiers::add(VerifierRow row) {
  require(!row.name.empty() && row.make, "verifier", "a verifier must have a name and a make: got ",
          row.name.empty() ? "no name" : row.name);
  for (const VerifierRow& other : rows_)
    require(other.name != row.name, "verifier", "the name of a verifier must be new: ", row.name,
            " is registered already; choose another name");
  rows_.push_back(std::move(row));
  return *this;
}

const VerifierRow& Verifiers::at(const std::string& name) const {
  std::vector<std::string> names;
  for (const VerifierRow& row : rows_) {
    if (row.name == name) return row;
    names.push_back(row.name);
  }
  throw Error("verifier", concat("unknown verifier ", printable(name), did_you_mean(name, names),
                                 "; the verifiers are ", join(names)));
}

Verifiers built_in_verifiers() {
  Verifiers verifiers;
  for (const Comparison& comparison : comparisons())
    verifiers.add({comparison.name, [comparison] { return compared_with_answer(comparison); }});
  verifiers.add({"regex", found_pattern}).add({"json", valid_json}).add({"tags", tags_in_order});
  return verifiers.add({"length", limited_length});
}

void refuse_member(const PromptLine& line, const std::string& member, const std::string& verifier,
                   const std::string& rule, const std::string& value) {
  throw Error("verifier", concat(verifier, " reads `", member, "` of each line, ", rule, ": got ", value, " in ",
                                 line.where, "; correct the line, or leave ", verifier, " out of the verifiers"));
}

const nlohmann::json& required_member(const PromptLine& line, const std::string& member, const std::string& verifier) {
  const auto at = line.members.find(member);
  if (at == line.members.end()) refuse_member(line, member, verifier, "which must be there", "none");
  return *at;
}

std::string required_text(const PromptLine& line, const std::string& member, const std::string& verifier) {
  const nlohmann::json& value = required_member(line, member, verifier);
  if (!value.is_string()) refuse_member(line, member, verifier, "which must be a text", printable(value.dump()));
  return value.get<std::string>();
}

}  // namespace colossal::text
