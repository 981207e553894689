#include "colossal/ops/activation.h"

#include <set>

#include "colossal/base/error.h"
#include "ops/compare.h"

namespace colossal::ops::activation_test {
namespace {

// Passed as the length of the longest sum, so tolerance() allows 16 eps of the largest result: 16 roundings of values
// of that size. They bound the operator and the reference, which computes in fp64 with other steps.
constexpr int64_t kSteps = 16;
const std::vector<std::vector<int64_t>> kShapes{{1, 2}, {3, 14}, {2, 5, 64}, {131, 34}, {9, 20000}, {6}};

TEST(Activation, EqualsItsReference) {
  for (const auto type : float_types())
    for (const auto& shape : kShapes) {
      SCOPED_TRACE(at::IntArrayRef(shape));
      const auto x = normal(shape, 1), up = normal(shape, 2);
      // fp16 has no fused kernel, so silu(gate) is rounded to fp16 before it is multiplied by `up`.
      const double silu = type == at::kHalf ? 1 : 0;
      expect_equal_operators([](const Tensors& t) { return Tensors{ops::gelu(t[0])}; },
                             [](const Tensors& t) { return Tensors{gelu_reference(t[0])}; }, {x}, type, kSteps);
      expect_equal_operators([](const Tensors& t) { return Tensors{swiglu(t[0], t[1])}; },
                             [](const Tensors& t) { return Tensors{swiglu_reference(t[0], t[1])}; }, {x, up}, type,
                             kSteps, silu);
      expect_equal_operators([](const Tensors& t) { return Tensors{swiglu(t[0])}; },
                             [](const Tensors& t) {
                               const auto halves = t[0].chunk(2, -1);
                               return Tensors{swiglu_reference(halves[0], halves[1])};
                             },
                             {x}, type, kSteps, silu);
    }
}

TEST(Activation, EqualsTheFormulaOfExactGelu) {
  for (const auto type : float_types())
    expect_equal_operators([](const Tensors& t) { return Tensors{exact_gelu(t[0])}; },
                           [](const Tensors& t) { return Tensors{t[0] / 2 * (1 + (t[0] / std::sqrt(2.0)).erf())}; },
                           {normal({131, 34}, 1)}, type, kSteps);
}

/// Computes the function called `name` in transformers' ACT2FN, from ATen operators with ATen's autograd.
at::Tensor by_formula(const std::string& name, const at::Tensor& x) {
  const auto tanh_gelu = [&] { return 0.5 * x * (1 + (std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)).tanh()); };
  const auto erf_gelu = [&] { return 0.5 * x * (1 + (x / std::sqrt(2.0)).erf()); };
  if (name == "gelu" || name == "gelu_python") return erf_gelu();
  if (name == "gelu_10") return erf_gelu().clamp(-10, 10);
  if (name == "quick_gelu") return x * (1.702 * x).sigmoid();
  if (name.rfind("gelu", 0) == 0) return tanh_gelu();
  if (name == "silu" || name == "swish") return x * x.sigmoid();
  if (name == "relu") return x.clamp_min(0);
  if (name == "relu2") return x.clamp_min(0).square();
  if (name == "relu6") return x.clamp(0, 6);
  if (name == "leaky_relu") return at::where(x > 0, x, 0.01 * x);
  if (name == "hardswish") return x * (x + 3).clamp(0, 6) / 6;
  if (name == "mish") return x * x.exp().log1p().tanh();
  if (name == "laplace") return 0.5 * (1 + ((x - 0.707107) / (0.282095 * std::sqrt(2.0))).erf());
  if (name == "sqrtsoftplus") return x.exp().log1p().sqrt();
  if (name == "tanh") return x.tanh();
  if (name == "sigmoid") return x.sigmoid();
  EXPECT_EQ(name, "linear");
  return x * 1;
}

TEST(Activation, EqualsTransformersFormulas) {
  const auto x = normal({7, 26}, 1) * 3;
  EXPECT_EQ(activations().size(), 22U);
  for (const Activation& each : activations())
    for (const auto type : {at::kDouble, at::kFloat}) {
      SCOPED_TRACE(each.name);
      const std::string name = each.name;
      EXPECT_EQ(&activation(name), &each);
      expect_equal_operators([&](const Tensors& t) { return Tensors{each.plain(t[0])}; },
                             [&](const Tensors& t) { return Tensors{by_formula(name, t[0])}; }, {x}, type, kSteps);
      expect_equal_operators([&](const Tensors& t) { return Tensors{each.gated(t[0])}; },
                             [&](const Tensors& t) {
                               const auto halves = t[0].chunk(2, -1);
                               return Tensors{by_formula(name, halves[0]) * halves[1]};
                             },
                             {x}, type, kSteps);
    }
}

TEST(Activation, EqualsTheReferenceOfGeglu) {
  for (const auto type : float_types())
    for (const auto& shape : kShapes)
      expect_equal_operators([](const Tensors& t) { return Tensors{geglu(t[0])}; },
                             [](const Tensors& t) {
                               const auto halves = t[0].chunk(2, -1);
                               return Tensors{gelu_reference(halves[0]) * halves[1]};
                             },
                             {normal(shape, 1)}, type, kSteps, type == at::kHalf ? 1 : 0);
}

// Each function is one autograd node, which saves its input or its output. A formula of several operators would save
// the input of each of them.
TEST(Activation, AddsOneAutogradNode) {
  const auto nodes = [](const at::Tensor& y) {
    int count = 0;
    for (auto node = y.grad_fn(); node && !node->next_edges().empty(); node = node->next_edges()[0].function) ++count;
    return count;
  };
  const auto x = normal({3, 8}, 1).requires_grad_();
  EXPECT_EQ(nodes(x * x.sigmoid()), 1);
  EXPECT_EQ(nodes(0.5 * (x * x).sigmoid()), 3);
  for (const Activation& each : activations()) {
    EXPECT_EQ(nodes(each.gated(x)), 1) << each.name;
    const std::string name = each.name;
    // relu2 has two nodes, which save the same tensor: relu its output, square its input.
    EXPECT_EQ(nodes(each.plain(x)), name == "linear" ? 0 : name == "relu2" ? 2 : 1) << name;
  }
}

// Parts of odd lengths end in elements that whole vectors do not take.
TEST(Activation, ComputesElementsByThemselvesWhereItSaysSo) {
  const auto in_parts = [](const auto& function, const at::Tensor& x, int64_t rows) {
    std::vector<at::Tensor> parts;
    for (const at::Tensor& part : x.split(rows)) parts.push_back(function(part.clone()));
    return at::cat(parts);
  };
  std::set<std::string> plain, gated;
  for (const Activation& each : activations())
    for (const auto type : {at::kFloat, at::kBFloat16})
      for (const int64_t rows : {1, 3, 13}) {
        SCOPED_TRACE(each.name);
        const at::Tensor x = (normal({1000, 14}, 1) * 3).to(type);
        if (computes_by_element(each, /*gated=*/false)) {
          plain.insert(each.name);
          EXPECT_TRUE(at::equal(in_parts(each.plain, x, rows), each.plain(x)));
        }
        if (computes_by_element(each, /*gated=*/true)) {
          gated.insert(each.name);
          EXPECT_TRUE(at::equal(in_parts(each.gated, x, rows), each.gated(x)));
        }
      }
  EXPECT_EQ(plain, (std::set<std::string>{"gelu_accurate", "gelu_fast", "gelu_new", "gelu_python_tanh",
                                          "gelu_pytorch_tanh", "leaky_relu", "linear", "relu", "relu2", "relu6"}));
  plain.insert({"silu", "swish"});
  EXPECT_EQ(gated, plain);
}

TEST(Activation, RefusesUnknownNames) {
  const auto says = [](const std::string& name, const char* what) {
    try {
      activation(name);
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  };
  says("gelu_old", "must be one of gelu, gelu_python, gelu_new,");
  says("gelu_old", "got gelu_old");
  says("prelu", "prelu has learned parameters");
  for (const Activation& each : activations()) EXPECT_THROW(each.gated(normal({2, 3}, 1)), Error) << each.name;
}

TEST(Activation, HandlesExtremeInputs) {
  for (const auto set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    const auto x = at::tensor({-1e30, -200.0, -20.0, 0.0, 20.0, 200.0, 1e30}, at::kFloat);
    const auto y = ops::gelu(x);
    EXPECT_TRUE(at::allclose(y, at::gelu(x, "tanh"))) << y;
    EXPECT_TRUE(ops::gelu(at::full({3}, std::nan(""), at::kFloat)).isnan().all().item<bool>());
    EXPECT_TRUE(ops::gelu_backward(at::ones_like(x), x).slice(0, 1, 6).isfinite().all().item<bool>());
  }
}

TEST(Activation, ReadsNonContiguousInput) {
  const auto wide = normal({8, 24}, 1);
  for (const auto& x : {wide.slice(1, 2, 14), wide.slice(1, 0, 24, 2), wide.slice(0, 0, 8, 2), wide.t()}) {
    expect_close(ops::gelu(x), gelu_reference(x), at::kDouble, kSteps, "gelu");
    expect_close(swiglu(x, x + 1), swiglu_reference(x, x + 1), at::kDouble, kSteps, "swiglu");
    const auto halves = x.chunk(2, -1);
    expect_close(swiglu(x), swiglu_reference(halves[0], halves[1]), at::kDouble, kSteps, "fused swiglu");
    expect_close(swiglu(halves[0], halves[1]), swiglu_reference(halves[0], halves[1]), at::kDouble, kSteps, "halves");
  }
}

TEST(Activation, RefusesMismatchedShapes) {
  EXPECT_THROW(swiglu(normal({2, 3}, 1)), Error);
  EXPECT_THROW(swiglu(normal({2, 3}, 1), normal({2, 4}, 1)), Error);
}

}  // namespace
}  // namespace colossal::ops::activation_test
