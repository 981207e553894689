// Folding with a small model: passes, recycling, confidences and memory, on one rank and on stages of a pipeline.
#include "colossal/fold/folder.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "colossal/comm/run_ranks.h"
#include "colossal/fold/fold_input.h"
#include "colossal/fold/folded_files.h"
#include "colossal/fold/pass_bytes.h"
#include "colossal/models/built_in.h"
#include "colossal/models/config.h"
#include "colossal/models/folding/confidence.h"
#include "colossal/nn/batch_step.h"
#include "colossal/run/saved_model.h"
#include "support/small_folding_model.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::fold::folder_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Sequence kComplex{.name = "pair", .chains = {"MKTAXY", "GRP"}};

run::Program program_with_folding() {
  run::Program program = run::built_in();
  program.models.add(test::small_folding());
  return program;
}

class FolderOfSmallModel : public testing::Test {
 protected:
  void write(const test::SmallFoldingKeys& keys = {}) {
    test::write_small_folding(folder_ / "model", test::small_folding_shape(program_.models, keys));
  }
  /// Calls `work` with the loaded model on each rank of a pipeline.
  void on_ranks(int stages, at::ScalarType dtype,
                const std::function<void(distributed::DistributedModel&, comm::Mesh&)>& work) {
    comm::run_ranks(stages, [&](comm::World& world) {
      distributed::ParallelConfig layout;
      layout.pipeline.size = stages;
      comm::Mesh mesh(world, layout.axes());
      const run::SavedModel saved =
          run::load_model(folder_ / "model", mesh, layout, at::kCPU, {.tokenizer = "none", .dtype = dtype}, program_);
      work(*saved.model, mesh);
    });
  }
  Folded folded(const FoldOptions& options, int stages = 1, std::vector<FoldedPass>* passes = nullptr) {
    Folded result;
    on_ranks(stages, at::kDouble, [&](distributed::DistributedModel& model, comm::Mesh& mesh) {
      Folder folder(model, mesh);
      const bool is_first = mesh.world().rank() == 0;
      const Folded own = folder.fold(sequence_input(kComplex, folder.shape()), options, [&](const FoldedPass& pass) {
        if (is_first && passes) passes->push_back(pass);
      });
      if (is_first) result = own;
    });
    return result;
  }

  test::TemporaryFolder folder_;
  run::Program program_ = program_with_folding();
};

/// What a pass gives whose operators write to tensors of their own, and whose heads are computed whole.
struct PlainPasses {
  models::FoldedAtoms atoms;
  at::Tensor plddt, ptm, errors;
};

PlainPasses plain_passes(const models::Model& model, const FoldInput& input, int64_t passes) {
  const at::AutoGradMode with_gradients(true);  // then no operator writes in place
  const tensor::Batch batch = input.fields(passes, 1).map([](const tensor::Field& field) {
    return at::isFloatingType(field.tensor.scalar_type()) ? field.tensor.to(at::kDouble) : field.tensor;
  });
  models::Recycled recycled;
  models::States end;
  for (int64_t pass = 0; pass < passes; ++pass) {
    const tensor::Batch fields = models::with_recycled(batch, recycled, model.shape);
    end = models::run_stage(model, {.last = model.shape.blocks()}, {}, nn::step_of(fields));
    recycled = models::recycled(*model.folding, end, fields);
  }
  const at::Tensor kept = at::tensor(input.kept, at::kLong);
  const at::Tensor mask = at::zeros({1, input.sizes.residues}, at::kDouble).index_fill_(1, kept, 1);
  PlainPasses plain{.atoms = models::folded_atoms(*model.folding, end, batch.at("aatype"))};
  plain.plddt =
      models::plddt(model.folding->lddt(end[static_cast<size_t>(model.folding->structure)]))[0].index_select(0, kept);
  const at::Tensor logits = model.folding->errors(end[static_cast<size_t>(model.folding->pair)]);
  plain.errors = models::expected_errors(logits)[0].index_select(0, kept).index_select(1, kept);
  plain.ptm = models::predicted_tm(models::tm_terms(logits, mask), mask.unsqueeze(2) * mask.unsqueeze(1));
  plain.atoms.positions37 = plain.atoms.positions37[0].index_select(0, kept);
  return plain;
}

double difference(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

TEST_F(FolderOfSmallModel, FoldsAsPlainPassesDo) {
  write();
  on_ranks(1, at::kDouble, [&](distributed::DistributedModel& model, comm::Mesh& mesh) {
    Folder folder(model, mesh);
    const FoldInput input = sequence_input(kComplex, folder.shape());
    ASSERT_EQ(input.sizes.residues, 6 + 25 + 3);
    const Folded folded = folder.fold(input, {.passes = 3, .keeps_errors = true});
    const PlainPasses plain = plain_passes(model.model(), input, 3);
    ASSERT_EQ(folded.positions.sizes(), (std::vector<int64_t>{9, 37, 3}));
    EXPECT_LT(difference(folded.positions, plain.atoms.positions37), 1e-10);
    EXPECT_LT(difference(folded.atom_plddt, plain.plddt * folded.atom_mask), 1e-10);
    EXPECT_LT(difference(folded.errors, plain.errors), 1e-10);
    EXPECT_NEAR(folded.ptm.value(), plain.ptm.item<double>(), 1e-12);
    EXPECT_EQ(folded.passes, 3);
    EXPECT_EQ(folded.pair_bytes, 34 * 34 * 6 * 8);
    EXPECT_EQ(folded.atom_mask[4].sum().item<int64_t>(), 0) << "X has no atoms";
    const at::Tensor ca = folded.atom_plddt.select(1, 1);
    EXPECT_NEAR(folded.plddt, ca.sum().item<double>() / 8, 1e-10);
    EXPECT_GT(difference(folded.positions, folder.fold(input, {.passes = 2}).positions), 1e-3) << "recycling counts";
  });
}

TEST_F(FolderOfSmallModel, FoldsOnStagesAsOnOneRank) {
  write({.points = 1});
  std::vector<FoldedPass> one, two;
  const Folded alone = folded({.passes = 3, .keeps_errors = true}, 1, &one),
               staged = folded({.passes = 3, .keeps_errors = true}, 2, &two);
  EXPECT_TRUE(at::equal(alone.positions, staged.positions));
  EXPECT_TRUE(at::equal(alone.atom_plddt, staged.atom_plddt));
  EXPECT_TRUE(at::equal(alone.errors, staged.errors));
  EXPECT_EQ(alone.ptm, staged.ptm);
  ASSERT_EQ(one.size(), 3u);
  ASSERT_EQ(two.size(), 3u);
  EXPECT_EQ(one[2].change, two[2].change);
  EXPECT_EQ(one[2].plddt, alone.plddt);
  EXPECT_EQ(one[0].change, 0);
  EXPECT_GT(one[1].change, 0);
  EXPECT_NE(alone.atom_plddt[0][0].item<double>(), alone.atom_plddt[1][0].item<double>());
  EXPECT_EQ(alone.atom_plddt[0][0].item<double>(), alone.atom_plddt[0][1].item<double>());
}

/// Folds with an ESMFold whose stages have so many blocks each; empty = one stage.
Folded folded_by_esmfold(const std::vector<int64_t>& blocks) {
  Folded result;
  comm::run_ranks(std::max<int>(1, static_cast<int>(blocks.size())), [&](comm::World& world) {
    distributed::ParallelConfig layout;
    layout.pipeline.size = world.size();
    layout.pipeline.layers_per_stage = blocks;
    comm::Mesh mesh(world, layout.axes());
    const models::ModelShape shape = models::built_in().resolve({.name = "esmfold-tiny"});
    distributed::DistributedModel model(mesh, layout, shape, {.dtype = at::kDouble}, {});
    {
      const at::NoGradGuard no_grad;
      for (nn::Parameter& p : model.parameters())
        p.value.copy_(.2 * at::arange(p.value.numel(), at::kDouble).mul(.7).add(p.name.size()).sin().view_as(p.value));
    }
    const Folded own = Folder(model, mesh).fold(sequence_input({"one", {"MKTAYIAK"}}, shape), {.passes = 3});
    if (world.rank() == 0) result = own;
  });
  return result;
}

TEST(FolderOfEsmFold, HandsAPassToTheStageThatReadsIt) {
  // Blocks: two of the language model, the start of the trunk, which reads the pass before, two of it, and the end.
  const Folded alone = folded_by_esmfold({});
  for (const std::vector<int64_t>& blocks : std::vector<std::vector<int64_t>>{{3, 3}, {2, 4}, {1, 3, 2}}) {
    const Folded staged = folded_by_esmfold(blocks);
    EXPECT_LT(difference(alone.positions, staged.positions), 1e-9) << blocks.front();
    EXPECT_EQ(staged.passes, 3);
  }
}

TEST_F(FolderOfSmallModel, StopsAfterAPassThatChangesLittle) {
  write({.predicts_errors = false});
  const Folded all = folded({});
  EXPECT_EQ(all.passes, 3) << "the passes of the model";
  EXPECT_FALSE(all.ptm);
  std::vector<FoldedPass> passes;
  EXPECT_EQ(folded({.passes = 9, .tolerance = 1e9}, 2, &passes).passes, 2);
  ASSERT_EQ(passes.size(), 2u);
  EXPECT_EQ(folded({.passes = 3, .tolerance = passes[1].change}).passes, 3) << "not less";
  // the mean over pairs of residues with a CA
  const auto ca = [&](int64_t count) {
    const at::Tensor places = folded({.passes = count}).positions.select(1, 1);
    return at::cat({places.narrow(0, 0, 4), places.narrow(0, 5, 4)});
  };
  const auto distances = [](const at::Tensor& x) { return (x.unsqueeze(0) - x.unsqueeze(1)).square().sum(-1).sqrt(); };
  EXPECT_NEAR(passes[1].change, (distances(ca(2)) - distances(ca(1))).abs().sum().item<double>() / (8 * 7), 1e-10);
}

TEST_F(FolderOfSmallModel, CountsTheBytesThatShapesPredict) {
  write();
  on_ranks(1, at::kFloat, [&](distributed::DistributedModel& model, comm::Mesh& mesh) {
    Folder folder(model, mesh);
    const FoldInput input = sequence_input({"long", {std::string(150, 'A')}}, folder.shape());
    const PassShapes shapes(folder.shape(), at::kFloat);
    const auto predicted = static_cast<double>(shapes.bytes(input.sizes));
    const Folded one = folder.fold(input, {.passes = 1}), four = folder.fold(input, {.passes = 4});
    EXPECT_EQ(shapes.pair_bytes(input.sizes), one.pair_bytes);
    EXPECT_NEAR(static_cast<double>(one.peak_bytes), predicted, .05 * predicted);
    EXPECT_NEAR(static_cast<double>(four.peak_bytes), predicted, .05 * predicted) << "z is handed over, not copied";
  });
}

TEST_F(FolderOfSmallModel, RefusesWhatItCannotFold) {
  const models::ModelShape shape = test::small_folding_shape(program_.models);
  models::ModelShape other = program_.models.resolve({.name = "gpt2-small"});
  const auto refused = [](const auto& call) { return test::thrown_message(call); };
  EXPECT_THAT(refused([&] { check_sequence(kComplex, other); }),
              AllOf(HasSubstr("must fold proteins: got a gpt2, which continues text"), HasSubstr("ESMFold")));
  EXPECT_THAT(refused([&] { check_sequence({"x", {"XJ"}}, shape, "a.fasta:1: "); }),
              HasSubstr("a.fasta:1: a sequence must have at least one residue of the 20 types"));
  models::ModelShape monomer = shape;
  monomer.set(models::FoldingSizes{.single = 8, .pair = 6});
  EXPECT_THAT(refused([&] { check_sequence(kComplex, monomer); }),
              HasSubstr("a complex needs a model of several chains"));
  EXPECT_THAT(refused([] { FoldOptions{.passes = 0}.check(); }), HasSubstr("passes must be at least 1: got 0"));
  EXPECT_THAT(refused([] { FoldOptions{.tolerance = -1}.check(); }), HasSubstr("tolerance must be 0 or more"));
  write();
  on_ranks(1, at::kHalf, [&](distributed::DistributedModel& model, comm::Mesh& mesh) {
    EXPECT_THAT(refused([&] { Folder(model, mesh); }), HasSubstr("set --precision bf16"));
  });
}

TEST(FoldedFiles, HaveTheChainsAndErrors) {
  Folded folded{
      .name = "pair", .chains = {"AX", "G"}, .plddt = 88.69914, .ptm = 0.13479, .passes = 4, .seconds = 1.23456};
  folded.positions = at::arange(3 * 37 * 3, at::kDouble).view({3, 37, 3});
  folded.atom_mask = at::zeros({3, 37}, at::kBool);
  folded.atom_mask.select(1, 1).fill_(true);
  folded.atom_mask[1][1] = false;
  folded.atom_plddt = at::full({3, 37}, 50., at::kDouble);
  folded.atom_plddt[2][1] = 75;
  const protein::Structure structure = structure_of(folded);
  ASSERT_EQ(structure.chains.size(), 2u);
  EXPECT_EQ(structure.chains[1].id, "B");
  EXPECT_TRUE(structure.chains[0].residues[1].atoms.empty());
  ASSERT_EQ(structure.chains[1].residues[0].atoms.size(), 1u);
  EXPECT_EQ(structure.chains[1].residues[0].atoms[0].position, (protein::Point{225, 226, 227}));
  EXPECT_EQ(structure.chains[1].residues[0].atoms[0].b_factor, 75);
  EXPECT_EQ(summary_of(folded).dump(),
            R"({"name":"pair","residues":3,"plddt":88.6991,"ptm":0.1348,"passes":4,"seconds":1.235,"pair_bytes":0,)"
            R"("peak_bytes":0,"plan":[]})");
  EXPECT_THAT(test::thrown_message([&] { errors_text(folded); }), HasSubstr("keeps_errors"));
  folded.errors = at::tensor({0.25, 31.756, 3.0, 1.0}, at::kDouble).view({2, 2});
  EXPECT_EQ(errors_text(folded),
            "[{\"predicted_aligned_error\": [[0.25, 31.76], [3, 1]], \"max_predicted_aligned_error\": 31.75}]\n");
  EXPECT_THAT(test::thrown_message(
                  [] { protein::require_pdb_sizes(unplaced_structure({"x", std::vector<std::string>(63, "A")})); }),
              HasSubstr("at most 62 chains: got 63; write mmCIF"));
}

}  // namespace
}  // namespace colossal::fold::folder_test
