// AlphaFold 2 with templates on an accelerator: results and gradients of the host, with and without gradients.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "colossal/models/built_in.h"
#include "colossal/models/config.h"
#include "colossal/models/folding/folding_model.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/serial_layers.h"
#include "support/accelerator.h"

namespace colossal::models::alphafold_accelerator_test {
namespace {

class AlphaFoldOnAccelerator : public test::AcceleratorTest {};

/// A small model and a batch of waves, with masks of ones.
struct Case {
  explicit Case(at::Device device)
      : shape(built_in().resolve({.name = "alphafold2-tiny",
                                  .layers = 1,
                                  .own = own_keys({"templates=1", "pae=true", "structure_layers=2"})})),
        parameters({}, {.dtype = at::kFloat, .device = device}),
        make(parameters),
        model(make_model(shape, make)) {
    const at::NoGradGuard no_grad;
    int64_t index = 0;
    for (nn::Parameter& p : parameters)  // the initial values have zeros in last layers
      p.value.copy_(waves(++index, p.value.sizes()) * .2 + (p.name.find("norm") != std::string::npos ? .5 : 0));
    const tensor::Batch empty = example_folding(shape, {.residues = 4, .clusters = 2, .extra = 2});
    for (const tensor::Batch::Named& field : empty.fields()) {
      const at::Tensor& like = field.field.tensor;
      const bool is_mask = field.name.find("mask") != std::string::npos;
      const at::Tensor values = is_mask ? at::ones(like.sizes()) : waves(++index, like.sizes());
      batch.add(field.name, {(like.is_floating_point() ? values : values.abs().mul(19).to(at::kLong)).to(device),
                             field.field.dims});
    }
  }
  static at::Tensor waves(int64_t index, at::IntArrayRef sizes) {
    const int64_t count = at::empty(sizes, at::kMeta).numel();
    return (at::arange(count, at::kDouble) * .7 + static_cast<double>(index)).sin().to(at::kFloat).view(sizes);
  }
  /// Returns the frames of all layers, the places of atoms and the results of all heads, as one row.
  at::Tensor results() const {
    const tensor::Batch copy = batch.map([](const tensor::Field& field) { return field.tensor.clone(); });
    const States end = run_stage(model, {0, static_cast<int64_t>(model.blocks.size())}, {}, nn::step_of(copy));
    const FoldingHeads& heads = *model.folding;
    const auto state = [&](int index) { return end[static_cast<size_t>(index)]; };
    const at::Tensor z = state(heads.pair);
    return at::cat({state(heads.frames).flatten(), folded_atoms(heads, end, batch.at("aatype")).positions37.flatten(),
                    heads.lddt(state(heads.structure)).flatten(), heads.errors(z).flatten(),
                    heads.distogram(z, z.transpose(1, 2)).flatten(), heads.resolved(state(heads.unfolded)).flatten(),
                    heads.letters(state(heads.alignment)).flatten()});
  }

  ModelShape shape;
  nn::Parameters parameters;
  nn::SerialLayers make;
  Model model;
  tensor::Batch batch;
};

TEST_F(AlphaFoldOnAccelerator, GivesTheResultsAndGradientsOfTheHost) {
  Case host(at::kCPU), there(test::accelerator());
  const at::Tensor want = host.results(), got = there.results();
  EXPECT_TRUE(at::allclose(got.cpu(), want, 1e-3, 1e-3)) << (got.cpu() - want).abs().max().item<float>();
  want.sum().backward(), got.sum().backward();
  for (const nn::Parameter& p : host.parameters) {
    const at::Tensor& gradient = there.parameters.at(p.name).value.grad();
    const double largest = p.value.grad().abs().max().item<double>();
    EXPECT_TRUE(at::allclose(gradient.cpu(), p.value.grad(), 1e-2, 1e-2 * largest + 1e-4)) << p.name;
  }
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::allclose(there.results().cpu(), want, 1e-3, 1e-3));
}

}  // namespace
}  // namespace colossal::models::alphafold_accelerator_test
