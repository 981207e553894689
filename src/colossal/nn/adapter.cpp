#include "colossal/nn/adapter.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/join.h"

namespace colossal::nn {
namespace {

/// Replaces the parts of a dotted path that are numbers by "*".
std::string without_numbers(const std::string& name) {
  std::string joined;
  for (size_t first = 0; first <= name.size();) {
    const size_t end = std::min(name.find('.', first), name.size());
    const std::string part = name.substr(first, end - first);
    const bool is_number =
        !part.empty() && std::all_of(part.begin(), part.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
    joined += (first > 0 ? "." : "") + (is_number ? "*" : part);
    first = end + 1;
  }
  return joined;
}

std::string list_of(const std::set<std::string>& names) { return names.empty() ? "no parameter" : join(names); }

class SwitchedProduct final : public Product {
 public:
  SwitchedProduct(std::shared_ptr<const Product> adapted, std::shared_ptr<const Product> plain,
                  std::shared_ptr<const bool> off)
      : adapted_(std::move(adapted)), plain_(std::move(plain)), off_(std::move(off)) {}

  std::vector<Parameter*> parameters() const override { return adapted_->parameters(); }
  std::vector<int64_t> first_outputs() const override { return adapted_->first_outputs(); }
  at::Tensor sum_over_inputs(at::Tensor part) const override { return adapted_->sum_over_inputs(std::move(part)); }
  bool has_backward() const override { return adapted_->has_backward(); }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    require(!*off_ || !saved, "adapter", "a pass with gradients must use the adapters: got one that switches them off");
    return (*off_ ? plain_ : adapted_)->forward(x, weight, bias, out, saved);
  }
  Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const override {
    return adapted_->backward(dy, saved, wanted);
  }

 private:
  std::shared_ptr<const Product> adapted_, plain_;
  std::shared_ptr<const bool> off_;
};

}  // namespace

std::shared_ptr<const Product> with_switch(std::shared_ptr<const Product> adapted, std::shared_ptr<const Product> plain,
                                           std::shared_ptr<const bool> off) {
  if (adapted == plain) return adapted;
  return std::make_shared<SwitchedProduct>(std::move(adapted), std::move(plain), std::move(off));
}

std::optional<std::string> notice_of_experts(const Parameters& parameters) {
  std::set<std::string> experts, added;
  for (const Parameter& p : parameters.declared()) {
    if (p.is_stack && p.hidden_matrix) experts.insert(without_numbers(p.name));
    if (p.is_added) added.insert(without_numbers(p.name));
  }
  if (experts.empty()) return std::nullopt;
  return concat("adapters do not reach the experts of a mixture: ", list_of(experts), " have none; adapters added ",
                list_of(added));
}

}  // namespace colossal::nn
