// Frozen weights that are stored as codes: every rank's part has the values that the whole matrix of the folder has.
#include "colossal/nn/frozen_form.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <set>

#include "colossal/base/error.h"
#include "colossal/nn/frozen_product.h"
#include "colossal/nn/grouped_product.h"
#include "colossal/nn/linear.h"
#include "colossal/nn/low_rank.h"
#include "colossal/ops/products/group_codes.h"
#include "colossal/ops/products/nf4_weight.h"
#include "colossal/ops/products/row_codes.h"
#include "support/thrown_message.h"

namespace colossal::nn::frozen_form_test {
namespace {

using tensor::MeshCoordinates;
using tensor::Segment;
using tensor::ShardSpec;
using testing::HasSubstr;

constexpr int64_t kOut = 52, kIn = 71;  // no multiples of a block

at::Tensor weight_values_of(int64_t out, int64_t in) {
  return at::sin(at::arange(out * in, at::kDouble) * 0.37).view({out, in}).to(at::kFloat) *
         at::linspace(0.01, 3, out * in).view({out, in});
}

/// How a folder stores the weight.
struct Stored {
  std::string name;
  std::vector<FolderMatrix> matrices;
};

/// One matrix, three, a transpose, and heads of q, k and v by turns in one matrix that also has rows of another weight.
std::vector<Stored> folders() {
  return {
      {"one", {}},
      {"three",
       {{.parts = {{.row = 0, .count = 24}}, .rows = 24},
        {.parts = {{.row = 24, .count = 12}}, .rows = 12},
        {.parts = {{.row = 36, .count = 16}}, .rows = 16}}},
      {"transposed", {{.parts = {{.row = 0, .count = kOut}}, .rows = kOut, .transposed = true}}},
      {"turns",
       {{.parts = {{.row = 0, .count = 26, .first = 0, .stride = 2}, {.row = 26, .count = 26, .first = 1, .stride = 2}},
         .rows = 55}}},
      {"transposed turns",
       {{.parts = {{.row = 0, .count = 26, .first = 0, .stride = 2}, {.row = 26, .count = 26, .first = 1, .stride = 2}},
         .rows = kOut,
         .transposed = true}}}};
}

/// Returns the values that the folder's matrices have in NF4, as our weight has them.
at::Tensor nf4_values(const at::Tensor& whole, std::vector<FolderMatrix> matrices, bool double_quantized) {
  if (matrices.empty()) matrices = {{.parts = {{.count = kOut}}, .rows = kOut}};
  at::Tensor values = at::full_like(whole, std::nan(""));
  for (const FolderMatrix& matrix : matrices) {
    at::Tensor rows = at::zeros({matrix.rows, whole.size(1)});
    for (const FolderRows& run : matrix.parts)
      for (int64_t i = 0; i < run.count; ++i) rows[run.first + i * run.stride].copy_(whole[run.row + i]);
    const at::Tensor near = ops::dequantize(
        ops::quantize_nf4(matrix.transposed ? rows.t() : rows, {double_quantized, matrix.transposed}), at::kFloat);
    for (const FolderRows& run : matrix.parts)
      for (int64_t i = 0; i < run.count; ++i) values[run.row + i].copy_(near[run.first + i * run.stride]);
  }
  return values;
}

Parameter parameter_of(const ShardSpec& spec) { return {.name = "layer.weight", .value = {}, .spec = spec}; }

/// Layouts of a weight: whole; rows of segments, padded; inputs in equal parts, padded; both, with rows cut further;
/// several ranges of inputs.
std::vector<ShardSpec> specs() {
  const std::vector<int64_t> shape{kOut, kIn};
  ShardSpec inputs = ShardSpec::split(shape, 1, {"row"});
  ShardSpec both = ShardSpec::split(shape, 0, {"row"}, {{24, 4}, {12, 4}, {16, 4}});
  both.splits[1] = ShardSpec::split(shape, 1, {"column"}).splits[1];
  ShardSpec shards = both;
  shards.splits[0].shards = {"depth"};
  return {ShardSpec::whole(shape),
          ShardSpec::split(shape, 0, {"row"}, {{24, 12}, {12, 12, true}, {16}}),
          inputs,
          both,
          shards,
          ShardSpec::split(shape, 1, {"row"}, {{30}, {41}})};
}

/// Calls body with each place of a mesh that splits a spec.
void for_places(const std::function<void(const MeshCoordinates& here)>& body) {
  for (int row = 0; row < 3; ++row)
    for (int column = 0; column < 2; ++column)
      for (int depth = 0; depth < 2; ++depth)
        body(MeshCoordinates({{"row", 3, row}, {"column", 2, column}, {"depth", 2, depth}}));
}

/// Returns this rank's part of whole values, with zeros for padding.
at::Tensor part_of(const at::Tensor& whole, const ShardSpec& spec, const MeshCoordinates& here) {
  at::Tensor part = at::zeros(spec.local_shape(here), whole.options());
  for (const tensor::LocalBox& box : spec.local_boxes(here))
    part.narrow(0, box.local_start[0], box.size[0])
        .narrow(1, box.local_start[1], box.size[1])
        .copy_(whole.narrow(0, box.start[0], box.size[0]).narrow(1, box.start[1], box.size[1]));
  return part;
}

using MakeForm = std::function<std::shared_ptr<const FrozenForm>(const Parameter& weight, const MeshCoordinates& here)>;
using Fill = std::function<void(const FrozenForm& form, const at::Tensor& value)>;

/// The parts that a form stores on each rank must decode to `values`, and products must be those of these.
void expect_parts(const MakeForm& make, const Fill& fill, const at::Tensor& values, const std::string& what) {
  for (const ShardSpec& spec : specs()) {
    std::set<int64_t> all_bytes;
    for_places([&](const MeshCoordinates& here) {
      const auto form = make(parameter_of(spec), here);
      at::Tensor value = at::empty(form->sizes(), at::dtype(form->dtype()));
      EXPECT_EQ(static_cast<int64_t>(value.nbytes()), form->bytes());
      EXPECT_EQ(form->bytes() % 16, 0) << "codes of chunks are aligned";
      all_bytes.insert(form->bytes());
      value.fill_(77);
      fill(*form, value);
      const at::Tensor want = part_of(values, spec, here);
      ASSERT_TRUE(at::equal(form->decode(value, at::kFloat), want)) << what;
      const int64_t first = want.size(0) / 3, count = want.size(0) / 2;
      EXPECT_TRUE(
          at::equal(form->rows(value, first, count, at::kBFloat16), want.narrow(0, first, count).to(at::kBFloat16)))
          << what;
      const at::Tensor w = want.to(at::kDouble), x = at::randn({3, w.size(1)}, at::kDouble),
                       dy = at::randn({3, w.size(0)}, at::kDouble), bias = at::randn({w.size(0)}, at::kDouble);
      // sums of at most 71 numbers of magnitude 10
      EXPECT_LE((form->multiply(value, x, bias) - at::linear(x, w, bias)).abs().max().item<double>(), 1e-12) << what;
      EXPECT_LE((form->input_gradient(value, dy) - at::mm(dy, w)).abs().max().item<double>(), 1e-12) << what;
    });
    EXPECT_EQ(all_bytes.size(), 1u) << what << ": ranks pack chunks alike";
  }
}

TEST(FrozenForm, HasNf4ValuesOfTheFolderInEveryLayout) {
  const at::Tensor whole = weight_values_of(kOut, kIn);
  bool is_double = false;
  for (const Stored& folder : folders()) {
    is_double = !is_double;
    expect_parts(
        [&](const Parameter& weight, const MeshCoordinates& here) {
          return make_frozen_form({FrozenFormat::Nf4, is_double}, weight, folder.matrices, here);
        },
        [&](const FrozenForm& form, const at::Tensor& value) { form.encode(whole, value); },
        nf4_values(whole, folder.matrices, is_double), folder.name);
  }
}

/// The rows of a folder's matrix, of which the rows of other weights are zeros.
at::Tensor matrix_of(const FolderMatrix& folder, const at::Tensor& whole) {
  at::Tensor rows = at::zeros({folder.rows, whole.size(1)});
  for (const FolderRows& run : folder.parts)
    for (int64_t i = 0; i < run.count; ++i) rows[run.first + i * run.stride].copy_(whole[run.row + i]);
  return rows;
}

// Layouts cut groups of inputs and blocks. Matrices of one weight may have several forms.
TEST(FrozenForm, TakesTheCodesOfTheFolderInEveryLayout) {
  const at::Tensor whole = weight_values_of(kOut, kIn);
  const std::vector<ops::CodesForm> forms{{.bits = 4, .group = 16, .minima = true},
                                          {.bits = 8, .group = 32},
                                          {.bits = 4, .group = 72},
                                          {.is_nf4 = true, .double_quantized = true},
                                          {.is_nf4 = true}};
  for (Stored folder : folders()) {
    if (folder.name.starts_with("transposed")) continue;  // codes are [out, in]
    if (folder.matrices.empty()) folder.matrices = {{.parts = {{.count = kOut}}, .rows = kOut}};
    for (size_t f = 0; f < forms.size(); ++f) {
      std::vector<FolderCodes> codes;
      at::Tensor values = at::full_like(whole, std::nan(""));
      for (size_t m = 0; m < folder.matrices.size(); ++m) {
        FolderMatrix& own = folder.matrices[m];
        const ops::CodesForm form = forms[(f + m) % forms.size()];
        own.codes = form;
        const at::Tensor rows = matrix_of(own, whole);
        at::Tensor near;
        if (form.is_nf4) {
          codes.emplace_back(ops::quantize_nf4(rows, {.double_quantized = form.double_quantized}));
          near = ops::dequantize(std::get<ops::Nf4Weight>(codes.back()), at::kFloat);
        } else {
          codes.emplace_back(
              ops::round_to_codes(rows, {.bits = form.bits, .group = form.group, .minima = form.minima}));
          near = std::get<ops::GroupCodes>(codes.back()).values();
        }
        for (const FolderRows& run : own.parts)
          for (int64_t i = 0; i < run.count; ++i) values[run.row + i].copy_(near[run.first + i * run.stride]);
      }
      expect_parts([&](const Parameter& weight,
                       const MeshCoordinates& here) { return make_folder_form(weight, folder.matrices, here); },
                   [&](const FrozenForm& form, const at::Tensor& value) {
                     at::Tensor(value).zero_();
                     for (size_t m = 0; m < codes.size(); ++m) form.take(m, codes[m], value);
                   },
                   values, concat(folder.name, " ", f));
    }
  }
}

TEST(FrozenForm, HasInt8ValuesOfRowsInEveryLayout) {
  const at::Tensor whole = weight_values_of(kOut, kIn);
  const ops::RowCodes coded = ops::encode_rows(whole, at::kChar);
  expect_parts([&](const Parameter& weight,
                   const MeshCoordinates& here) { return make_frozen_form({FrozenFormat::Int8}, weight, {}, here); },
               [&](const FrozenForm& form, const at::Tensor& value) { form.encode(whole, value); },
               coded.codes.to(at::kFloat) * coded.scales.unsqueeze(1), "int8");
}

TEST(FrozenForm, TakesFewBytes) {
  const Parameter weight = parameter_of(ShardSpec::whole({512, 1024}));
  const double elements = 512 * 1024;
  const auto bits = [&](const FrozenOptions& options) {
    return 8 * static_cast<double>(make_frozen_form(options, weight, {}, {})->bytes()) / elements;
  };
  EXPECT_EQ(bits({FrozenFormat::Nf4, false}), 4.5);
  // 4 bits, 8 for each of 8192 blocks, 32 maxima of fp32, 256 values and the mean, up to 16 bytes
  EXPECT_NEAR(bits({FrozenFormat::Nf4, true}), 4 + 8.0 / 64 + 8 * (32 * 4 + 257 * 4 + 8) / elements, 8 * 8 / elements);
  EXPECT_EQ(bits({FrozenFormat::Int8}), 8 + 32.0 / 1024);
  EXPECT_EQ(bits({FrozenFormat::Bf16}), 16);
}

TEST(FrozenForm, RefusesWhatItCannotStore) {
  const Parameter weight = parameter_of(ShardSpec::whole({4, 8}));
  const auto message = [&](const std::vector<FolderMatrix>& matrices) {
    return test::thrown_message([&] { make_frozen_form({}, weight, matrices, {}); });
  };
  EXPECT_THAT(message({{.parts = {{.count = 3}}, .rows = 3}}), HasSubstr("each row of layer.weight: got 3 of 4"));
  EXPECT_THAT(message({{.parts = {{.count = 4}}, .rows = 4}, {.parts = {{.row = 2, .count = 1}}, .rows = 1}}),
              HasSubstr("got row 2 twice"));
  EXPECT_THAT(message({{.parts = {{.count = 4, .first = 1}}, .rows = 4}}), HasSubstr("got 4 rows from 0 of 4"));
  EXPECT_THAT(test::thrown_message([&] { make_frozen_form({}, parameter_of(ShardSpec::whole({4, 8, 3})), {}, {}); }),
              HasSubstr("must be a matrix to be stored in another form, or a stack of matrices: got 3 dimensions"));
  for (const FrozenFormat format : {FrozenFormat::Nf4, FrozenFormat::Int8}) {
    const auto form = make_frozen_form({format}, weight, {}, {});
    at::Tensor bad = at::ones({4, 8});
    bad[1][2] = std::numeric_limits<float>::infinity();
    const at::Tensor value = at::empty(form->sizes(), at::kByte);
    EXPECT_THAT(test::thrown_message([&] { form->encode(bad, value); }), HasSubstr("[quantization]"));
    EXPECT_THAT(test::thrown_message([&] { form->take(0, ops::quantize_nf4(bad, {}), value); }),
                HasSubstr("[quantization]"));
  }
  EXPECT_THAT(test::thrown_message([&] { make_folder_form(weight, {{.parts = {{.count = 4}}, .rows = 4}}, {}); }),
              HasSubstr("the matrices of layer.weight must be codes"));
  const FolderMatrix matrix{.parts = {{.count = 4}}, .rows = 4, .codes = ops::CodesForm{.bits = 8, .group = 8}};
  const auto form = make_folder_form(weight, {matrix}, {});
  const at::Tensor value = at::zeros(form->sizes(), at::kByte);
  for (const FolderCodes& codes : {FolderCodes(ops::quantize_nf4(at::ones({4, 8}), {})),
                                   FolderCodes(ops::round_to_codes(at::ones({4, 8}), {.bits = 8, .group = 16})),
                                   FolderCodes(ops::round_to_codes(at::ones({4, 16}), {.bits = 8, .group = 8}))})
    EXPECT_THAT(test::thrown_message([&] { form->take(0, codes, value); }),
                HasSubstr("must have the form that the headers of the folder promise"));
  EXPECT_THAT(test::thrown_message([&] { form->encode(at::ones({4, 8}), value); }), HasSubstr("Numbers"));
}

/// A product that is not a DirectProduct, like products that gather blocks.
class Gathering final : public Product {
 public:
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    return serial_product().forward(x, weight, bias, out, saved);
  }
  Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const override {
    return serial_product().backward(dy, saved, wanted);
  }
};

std::shared_ptr<const Product> product_for(bool gathers) {
  if (gathers) return std::make_shared<Gathering>();
  return {std::shared_ptr<void>(), &serial_product()};
}

/// Output and gradients of a layer.
std::vector<at::Tensor> results_of(const Product& product, const Parameter& weight, Parameters& parameters) {
  const at::Tensor x = at::cos(at::arange(3 * kIn, at::kDouble) * 0.2).view({3, kIn}).requires_grad_();
  const at::Tensor y = linear(product, x, weight.value, {}, kOut, nullptr);
  y.square().sum().backward();
  std::vector<at::Tensor> all{y, x.grad()};
  for (const Parameter& p : parameters)
    if (p.treatment.trains) all.push_back(p.value.grad());
  return all;
}

/// Returns results with the weight in that format or, without one, with its values `given`; with LoRA or DoRA.
std::vector<at::Tensor> results_in(const std::optional<FrozenOptions>& options, const at::Tensor& given, bool gathers,
                                   std::optional<LowRank> adapter, at::Tensor* values) {
  Parameters parameters({}, {.dtype = at::kDouble, .seed = 3, .treatment = [](const std::string& name) {
                               return Treatment{.trains = is_low_rank(name), .saved = is_low_rank(name)};
                             }});
  Parameter& weight = parameters.add("layer.weight", ShardSpec::whole({kOut, kIn}), Init::normal(0.5), true);
  weight.hidden_matrix = true;
  std::shared_ptr<const Product> product = product_for(gathers);
  if (options) {
    product = with_frozen_form(product, weight, parameters, make_frozen_form(*options, weight, {}, {}));
    if (values) *values = weight_values(*product, weight.value).clone();
  } else if (given.defined()) {
    weight.value.copy_(given);
  }
  if (adapter) {
    product = with_low_rank(product, weight, parameters, *adapter);
    const at::NoGradGuard no_grad;
    parameters.at("layer.adapter_b").value.fill_(0.01);
    if (adapter->magnitudes) parameters.at("layer.adapter_m").value.fill_(0.1);
  }
  return results_of(*product, weight, parameters);
}

TEST(FrozenForm, MultipliesInsideOfAdapters) {
  for (const FrozenFormat format : {FrozenFormat::Bf16, FrozenFormat::Int8, FrozenFormat::Nf4})
    for (const bool gathers : {false, true})
      for (const std::optional<LowRank>& adapter : {std::optional<LowRank>(), std::optional<LowRank>({.rank = 2}),
                                                    std::optional<LowRank>({.rank = 2, .magnitudes = true})}) {
        at::Tensor values;
        const auto got = results_in(FrozenOptions{format}, {}, gathers, adapter, &values);
        const auto want = results_in({}, values, gathers, adapter, nullptr);
        const auto plain = results_in({}, {}, gathers, adapter, nullptr);
        ASSERT_EQ(got.size(), want.size());
        for (size_t i = 0; i < want.size(); ++i)
          EXPECT_LE((got[i] - want[i]).abs().max().item<double>(), 1e-12 * want[i].abs().max().item<double>() * kIn)
              << i << gathers;
        EXPECT_GT((got[0] - plain[0]).abs().max().item<double>(), 1e-4) << "codes are not the values";
      }
}

// The matrices of a stack have one form. A rank draws those of its experts, whatever the layout.
TEST(FrozenForm, MultipliesTheMatricesOfAStack) {
  const auto stack_of = [](const MeshCoordinates& here) {
    return Parameters(here, {.dtype = at::kDouble, .seed = 3, .treatment = [](const std::string& name) {
                               return Treatment{.trains = is_low_rank(name), .saved = is_low_rank(name)};
                             }});
  };
  ShardSpec spec = ShardSpec::split({4, kOut, kIn}, 0, {"row"});
  spec.splits[1] = ShardSpec::split({4, kOut, kIn}, 1, {"column"}).splits[1];
  for (const FrozenFormat format : {FrozenFormat::Bf16, FrozenFormat::Int8, FrozenFormat::Nf4}) {
    std::vector<at::Tensor> whole;  // the values of all matrices
    for (const MeshCoordinates& here :
         {MeshCoordinates(), MeshCoordinates({{"row", 2, 1}, {"column", 2, 1}, {"depth", 2, 0}})}) {
      Parameters parameters = stack_of(here);
      Parameters::Options with_forms = parameters.options();
      with_forms.products = {[&](std::shared_ptr<const Product> product, const Parameter& weight, Parameters& all) {
        product = with_frozen_form(product, weight, all, make_frozen_form({format}, *weight.stack, {}, here));
        return with_low_rank(product, weight, all, {.rank = 2});
      }};
      with_forms.model = "one";
      parameters.begin_model(with_forms);
      Parameter& stack = parameters.add("experts.up", spec, Init::normal(0.5), true);
      stack.hidden_matrix = stack.is_stack = true;
      const auto product = grouped_product(parameters, stack);
      const auto form = parameters.form_of(stack);
      const std::vector<int64_t> local = spec.local_shape(here);
      ASSERT_EQ(stack.value.size(0), local[0]);
      std::vector<at::Tensor> values;
      for (int64_t e = 0; e < local[0]; ++e) values.push_back(form->decode(stack.value[e], at::kDouble));
      if (whole.empty())
        whole = values;
      else
        for (int64_t e = 0; e < 2; ++e)
          EXPECT_TRUE(at::equal(values[e], whole[2 + e].narrow(0, kOut / 2, kOut / 2))) << "experts 2 and 3";
      at::Tensor x = at::cos(at::arange(5 * kIn, at::kDouble) * 0.2).view({5, kIn}).requires_grad_();
      const ops::GroupEnds ends = local[0] == 4 ? ops::GroupEnds{2, 2, 3, 5} : ops::GroupEnds{2, 5};
      const at::Tensor y = grouped_linear(*product, x, stack.value, {}, ends, nullptr),
                       dy = at::sin(at::arange(5 * local[1], at::kDouble)).view({5, local[1]});
      y.backward(dy);
      int64_t first = 0;
      for (int64_t e = 0; e < local[0]; first = ends[e++]) {
        const int64_t count = ends[e] - first;
        const at::Tensor own = x.detach().narrow(0, first, count);
        // B is zero. Sums of at most 71 numbers of magnitude 3.
        EXPECT_LE((y.detach().narrow(0, first, count) - at::linear(own, values[e])).abs().sum().item<double>(), 1e-11);
        EXPECT_LE((x.grad().narrow(0, first, count) - at::mm(dy.narrow(0, first, count), values[e]))
                      .abs()
                      .sum()
                      .item<double>(),
                  1e-11);
      }
    }
  }
}

TEST(FrozenForm, BelongsToFrozenParameters) {
  for (const bool trains : {false, true}) {
    Parameters parameters({}, {.treatment = [&](const std::string&) { return Treatment{.trains = trains}; }});
    Parameter& weight = parameters.add("layer.weight", ShardSpec::whole({4, 8}), Init::zeros(), true);
    EXPECT_THAT(test::thrown_message([&] { parameters.store_as(weight, make_frozen_form({}, weight, {}, {})); }),
                HasSubstr(trains ? "got layer.weight, which trains" : "got layer.weight, which is saved"));
    EXPECT_EQ(parameters.form_of(weight), nullptr);
    EXPECT_EQ(parameters.stored_dtype(weight), at::kFloat);
  }
}

}  // namespace
}  // namespace colossal::nn::frozen_form_test
