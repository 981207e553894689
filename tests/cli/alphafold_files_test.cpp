// AlphaFold 2's weights in files of AlphaFold and OpenFold: the shapes that they show, `colossal export`, refusals.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "cli/outcome.h"
#include "colossal/base/json.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/weight_source.h"
#include "colossal/formats/zip_file.h"
#include "colossal/models/config.h"
#include "colossal/models/families/alphafold2.h"
#include "colossal/run/config.h"
#include "colossal/run/external_names.h"
#include "colossal/run/model_source.h"
#include "colossal/run/program.h"
#include "colossal/run/resolve_shape.h"
#include "models/made_model.h"
#include "support/alphafold_weights.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"
#include "support/torch_bytes.h"

namespace colossal::cli::alphafold_files_test {
namespace {

using models::AlphaFold2Sizes;
using testing::AllOf;
using testing::HasSubstr;

class AlphaFoldFiles : public testing::Test {
 protected:
  void SetUp() override {
    if (!formats::reads_zips()) GTEST_SKIP() << "built without libzip";
  }
  std::string write_npz(const test::NamedShapes& shapes) const {
    return folder_.write("params_model_1_ptm.npz", test::alphafold_npz(shapes));
  }
  models::ModelShape shape_of(const std::string& path) const { return run::find_source(path, built_in()).shape; }
  test::TemporaryFolder folder_;
};

/// Returns `text` with one part in place of another, if it has that part.
std::string replaced(std::string text, const std::string& part, const std::string& other) {
  if (const size_t at = text.find(part); at != std::string::npos) text.replace(at, part.size(), other);
  return text;
}

/// Returns the name that an older OpenFold, and a trainer, gave a tensor.
std::string old_name(std::string name) {
  if (!name.starts_with("template_embedder."))
    for (const char* part : {".msa_transition.", ".outer_product_mean.", ".pair_stack."})
      name = replaced(name, part, part == std::string(".pair_stack.") ? ".core." : std::string(".core") + part);
  name = replaced(name, "_points.linear.", "_points.");
  name = replaced(name, "template_embedder.template_single_embedder.", "template_angle_embedder.");
  return "model." + replaced(name, "template_embedder.", "");
}

TEST_F(AlphaFoldFiles, ShowTheShapeOfTheModel) {
  const models::ModelShape shape = shape_of(write_npz(test::alphafold_golden_shapes(true)));
  const AlphaFold2Sizes want{.pae = true,
                             .alignment_features = 16,
                             .pair_features = 12,
                             .extra_features = 8,
                             .template_features = 8,
                             .structure_features = 20,
                             .extra_blocks = 1,
                             .alignment_heads = 2,
                             .alignment_width = 8,
                             .pair_heads = 2,
                             .pair_width = 6,
                             .extra_heads = 2,
                             .extra_width = 4,
                             .template_heads = 2,
                             .template_width = 4,
                             .lookup_heads = 2,
                             .lookup_width = 4,
                             .outer = 4,
                             .triangle = 10,
                             .template_triangle = 6,
                             .point_heads = 2,
                             .point_width = 4,
                             .query_points = 2,
                             .value_points = 3,
                             .angle_features = 7,
                             .confidence_features = 8};
  EXPECT_EQ(shape.layers, 2);
  EXPECT_EQ(shape.own.as<AlphaFold2Sizes>(), want);
  EXPECT_EQ(shape_of(write_npz(test::alphafold_golden_shapes(false))).own.as<AlphaFold2Sizes>().templates, 0);
}

TEST_F(AlphaFoldFiles, StartRuns) {
  run::Config config;
  config.model.from = write_npz(test::alphafold_golden_shapes(false));
  EXPECT_TRUE(run::resolve_shape(config.model, built_in()) == shape_of(config.model.from));
  EXPECT_EQ(test::thrown_message([&] { run::check_training(config, built_in()); }), "");
  config.model.own = models::own_keys({"pair_features=8"});
  EXPECT_THAT(test::thrown_message([&] { run::resolve_shape(config.model, built_in()); }),
              HasSubstr("remove pair_features from [model]"));
}

TEST_F(AlphaFoldFiles, ReadOlderNamesOfOpenFold) {
  const std::string npz = write_npz(test::alphafold_golden_shapes(true));
  const models::ModelShape shape = shape_of(npz);
  models::Made made(shape), again(shape);
  checkpoint::import_weights(npz, made.parameters, run::external_names(shape));
  test::NamedPieces tensors;
  std::vector<std::pair<std::string, std::string>> storages;
  for (const nn::ExternalName& name : shape.architecture->hugging_face.names(shape)) {
    const at::Tensor value = made.parameters.at(name.ours).value.detach();
    const std::string key = std::to_string(storages.size());
    tensors.push_back(
        {old_name(name.parts.front().name), test::tensor_piece(test::storage_piece("DoubleStorage", key, value.numel()),
                                                               0, value.sizes().vec(), value.strides().vec())});
    storages.push_back({key, std::string(static_cast<const char*>(value.const_data_ptr()), value.nbytes())});
  }
  const std::string piece = test::dict_piece({{"ema", test::dict_piece({{"params", test::dict_piece(tensors)}})}});
  const std::string pt = folder_.write("finetuning_ptm_2.pt", test::torch_zip(piece, storages));
  checkpoint::import_weights(pt, again.parameters, run::external_names(shape));
  for (const nn::Parameter& p : made.parameters)
    EXPECT_TRUE(again.parameters.at(p.name).value.equal(p.value)) << p.name;
  const auto found = shape_of(pt).own.as<AlphaFold2Sizes>();
  EXPECT_EQ(found.alignment_width, 8);
  EXPECT_EQ(found.lookup_heads, 4);  // OpenFold's tensors do not tell; AlphaFold 2 has 4
}

TEST_F(AlphaFoldFiles, ExportTheNamesOfOpenFold) {
  const std::string npz = write_npz(test::alphafold_golden_shapes(true)), to = folder_ / "exported";
  const std::string again = folder_ / "again";  // an export of an export
  for (const auto& [from, target] : {std::pair{npz, to}, {to, again}}) {
    const Outcome outcome = run_command("export", {"--from", from, "--to", target});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_TRUE(shape_of(target) == shape_of(npz));
  }
  const auto before = checkpoint::open_weights(npz), after = checkpoint::open_weights(again);
  ASSERT_EQ(after->entries().size(), before->entries().size());
  for (const auto& [name, entry] : before->entries()) {
    ASSERT_TRUE(after->entries().contains(name)) << name;
    const at::Tensor got = after->tensor(name);
    EXPECT_TRUE(got.equal(before->tensor(name).to(got.scalar_type()))) << name;
  }
  EXPECT_TRUE(after->entries().contains("evoformer.blocks.1.pair_stack.tri_mul_in.linear_a_p.weight"));
}

TEST_F(AlphaFoldFiles, ListTensorsThatDoNotFit) {
  test::NamedShapes shapes = test::alphafold_golden_shapes(false);
  const models::ModelShape shape = shape_of(write_npz(shapes));
  shapes.erase("alphafold/alphafold_iteration/structure_module/fold_iteration/affine_update//bias");
  shapes["alphafold/alphafold_iteration/evoformer/unknown//weights"] = {2, 2};
  const std::string npz = write_npz(shapes);
  models::Made made(shape);
  const std::string message =
      test::thrown_message([&] { checkpoint::import_weights(npz, made.parameters, run::external_names(shape)); });
  EXPECT_THAT(message, AllOf(HasSubstr("structure_module.bb_update.linear.bias"),
                             HasSubstr("alphafold/alphafold_iteration/evoformer/unknown//weights")));
  EXPECT_THAT(test::thrown_message([&] { shape_of(folder_.write("x.npz", test::alphafold_npz({{"a", {2}}}))); }),
              HasSubstr("must hold the weights of AlphaFold 2"));
}

}  // namespace
}  // namespace colossal::cli::alphafold_files_test
