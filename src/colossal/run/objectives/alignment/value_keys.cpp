#include "colossal/run/objectives/alignment/value_keys.h"

#include "colossal/base/error.h"
#include "colossal/run/unused_keys.h"

namespace colossal::run {

void ValueKeys::fields(Fields& f) {
  f.text(
      "from", from,
      "with value.trunk = own: the model from which the values start: a reward model (a run folder, or a Hugging Face "
      "folder ...ForSequenceClassification with one label), or a language model, whose new head starts at 0");
  f.text("name", name, "preset with random weights in place of value.from, for plans");
  f.choice("trunk", trunk, {"own", "policy"}, "own: a separate model; policy: a head on the policy, which starts at 0");
  f.number("weight", weight, "", "with value.trunk = policy: weight of the loss of the values", 0);
  f.rest(own);
}

bool ValueKeys::operator==(const ValueKeys& other) const { return to_toml(*this) == to_toml(other); }

void check_value_keys(const ValueKeys& keys) {
  const bool is_own = !keys.is_on_policy();
  refuse_unused_keys(kValue, describe_config(keys), describe_config(ValueKeys()),
                     {{"from", is_own, "value.trunk own"},
                      {"name", is_own, "value.trunk own"},
                      {"weight", !is_own, "value.trunk policy"}});
  const auto& others = keys.own.values();
  require(is_own || others.empty(), kValue,
          "[value.optimizer] needs value.trunk = \"own\", because a head on the policy ",
          "trains with the policy: got ", others.empty() ? "" : others.begin()->first, "; leave it out");
}

}  // namespace colossal::run
