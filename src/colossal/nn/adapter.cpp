#include "colossal/nn/adapter.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/nn/grouped_product.h"

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

void require_on(bool is_off, bool has_gradients) {
  require(!is_off || !has_gradients, "adapter",
          "a pass with gradients must use the adapters: got one that switches them off");
}

class SwitchedProduct final : public Product {
 public:
  SwitchedProduct(std::shared_ptr<const Product> adapted, std::shared_ptr<const Product> plain,
                  std::shared_ptr<const bool> off)
      : adapted_(std::move(adapted)), plain_(std::move(plain)), off_(std::move(off)) {}

  std::vector<Parameter*> parameters() const override { return adapted_->parameters(); }
  std::vector<int64_t> first_outputs() const override { return adapted_->first_outputs(); }
  at::Tensor sum_over_inputs(at::Tensor part) const override { return adapted_->sum_over_inputs(std::move(part)); }
  bool has_backward() const override { return adapted_->has_backward(); }
  bool reads_weight(bool has_gradients) const override {
    return (*off_ ? plain_ : adapted_)->reads_weight(has_gradients);
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    require_on(*off_, saved != nullptr);
    return (*off_ ? plain_ : adapted_)->forward(x, weight, bias, out, saved);
  }
  Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const override {
    return adapted_->backward(dy, saved, wanted);
  }

 private:
  std::shared_ptr<const Product> adapted_, plain_;
  std::shared_ptr<const bool> off_;
};

/// The product of a stack with an adapter that can be switched off.
class SwitchedGroups final : public GroupedProduct {
 public:
  SwitchedGroups(std::shared_ptr<const GroupedProduct> adapted, std::shared_ptr<const GroupedProduct> plain,
                 std::shared_ptr<const bool> off)
      : adapted_(std::move(adapted)), plain_(std::move(plain)), off_(std::move(off)) {}

  std::vector<Parameter*> parameters() const override { return adapted_->parameters(); }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const ops::GroupEnds& ends,
                     Saved* saved) const override {
    require_on(*off_, saved != nullptr);
    return (*off_ ? plain_ : adapted_)->forward(x, weight, bias, ends, saved);
  }
  at::Tensor input_gradient(const at::Tensor& dy, const Saved& saved, const ops::GroupEnds& ends) const override {
    return adapted_->input_gradient(dy, saved, ends);
  }
  at::Tensor weight_gradient(const at::Tensor& dy, const Saved& saved, const ops::GroupEnds& ends,
                             at::Tensor sum) const override {
    return adapted_->weight_gradient(dy, saved, ends, std::move(sum));
  }
  std::vector<at::Tensor> own_gradients(const at::Tensor& dy, const Saved& saved,
                                        const ops::GroupEnds& ends) const override {
    return adapted_->own_gradients(dy, saved, ends);
  }

 private:
  std::shared_ptr<const GroupedProduct> adapted_, plain_;
  std::shared_ptr<const bool> off_;
};

/// An expert with an adapter that can be switched off.
class SwitchedExpert final : public ExpertWrapper {
 public:
  SwitchedExpert(std::shared_ptr<const ExpertWrapper> adapted, std::shared_ptr<const bool> off)
      : adapted_(std::move(adapted)), off_(std::move(off)) {}
  const std::shared_ptr<const Product>& inside() const override { return adapted_->inside(); }
  std::shared_ptr<const GroupedProduct> around(std::shared_ptr<const GroupedProduct> product) const override {
    return std::make_shared<SwitchedGroups>(adapted_->around(product), product, off_);
  }
  std::vector<Parameter*> parameters() const override { return adapted_->parameters(); }
  bool has_backward() const override { return adapted_->has_backward(); }

 private:
  std::shared_ptr<const ExpertWrapper> adapted_;
  std::shared_ptr<const bool> off_;
};

}  // namespace

std::shared_ptr<const Product> with_switch(std::shared_ptr<const Product> adapted, std::shared_ptr<const Product> plain,
                                           std::shared_ptr<const bool> off) {
  if (adapted == plain) return adapted;
  if (auto expert = std::dynamic_pointer_cast<const ExpertWrapper>(adapted))
    return std::make_shared<SwitchedExpert>(std::move(expert), std::move(off));
  return std::make_shared<SwitchedProduct>(std::move(adapted), std::move(plain), std::move(off));
}

std::optional<std::string> notice_of_experts(const Parameters& parameters) {
  std::set<std::string> experts, added;
  for (const Parameter& p : parameters.declared()) {
    if (p.is_stack && p.is_added) return std::nullopt;
    if (p.is_stack && p.hidden_matrix) experts.insert(without_numbers(p.name));
    if (p.is_added) added.insert(without_numbers(p.name));
  }
  if (experts.empty()) return std::nullopt;
  return concat("the experts of the mixture have no adapters: got none of ", list_of(experts), "; adapters added ",
                list_of(added), "; add \"experts\" to adapter.targets to train them");
}

}  // namespace colossal::nn
