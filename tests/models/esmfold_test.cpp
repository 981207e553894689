// ESMFold against golden values of transformers 5.23 in fp64 (../shared/reference/folding.md, G1 and G35); padding,
// language states, recomputation, counts, folders and refusals.
#include "colossal/models/families/esmfold.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/built_in.h"
#include "colossal/models/config.h"
#include "colossal/models/folding/confidence.h"
#include "colossal/models/folding/folding_model.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/protein/residues.h"
#include "models/made_model.h"
#include "support/golden_numbers.h"
#include "support/thrown_message.h"

namespace colossal::models::esmfold_test {
namespace {

using nlohmann::json;
using test::golden_sum;
using testing::HasSubstr;
using testing::Not;

/// The config of the model with which the golden values were computed.
json small() {
  const json structure{{"sequence_dim", 10}, {"pairwise_dim", 8},  {"ipa_dim", 4},      {"resnet_dim", 6},
                       {"num_heads_ipa", 2}, {"num_qk_points", 2}, {"num_v_points", 3}, {"num_blocks", 2}};
  const json trunk{{"num_blocks", 2},          {"sequence_state_dim", 16},     {"pairwise_state_dim", 12},
                   {"sequence_head_width", 4}, {"pairwise_head_width", 3},     {"max_recycles", 2},
                   {"chunk_size", 64},         {"structure_module", structure}};
  return {{"model_type", "esm"},
          {"architectures", {"EsmForProteinFolding"}},
          {"is_folding_model", true},
          {"vocab_size", 33},
          {"mask_token_id", 32},
          {"pad_token_id", 1},
          {"hidden_size", 16},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 2},
          {"intermediate_size", 32},
          {"layer_norm_eps", 1e-5},
          {"position_embedding_type", "rotary"},
          {"token_dropout", true},
          {"esmfold_config", {{"fp16_esm", true}, {"lddt_head_hid_dim", 12}, {"trunk", trunk}}}};
}

Registry registry() { return Registry().add(esmfold_architecture()); }

ModelShape shape_of(const json& config) {
  ModelShape shape = registry().shape_of(config);
  shape.validate();
  return shape;
}

/// Returns the layers of the golden model in the order in which transformers declares them.
std::vector<std::string> layers_in_order() {
  std::vector<std::string> names{"esm_s_combine", "esm.embeddings.word_embeddings"};
  const auto add = [&](const std::string& prefix, const std::vector<const char*>& layers) {
    for (const char* layer : layers) names.push_back(prefix + layer);
  };
  for (const char* layer : {"0.", "1."})
    add(concat("esm.encoder.layer.", layer),
        {"attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
         "attention.LayerNorm", "intermediate.dense", "output.dense", "LayerNorm"});
  add("esm.", {"encoder.emb_layer_norm_after", "contact_head.regression"});
  add("", {"esm_s_mlp.0", "esm_s_mlp.1", "esm_s_mlp.3", "embedding"});
  add("trunk.", {"pairwise_positional_embedding.embedding"});
  for (const char* i : {"0.", "1."}) {
    const std::string block = concat("trunk.blocks.", i);
    add(block, {"layernorm_1", "sequence_to_pair.layernorm", "sequence_to_pair.proj", "sequence_to_pair.o_proj",
                "pair_to_sequence.layernorm", "pair_to_sequence.linear", "seq_attention.proj", "seq_attention.o_proj",
                "seq_attention.g_proj"});
    for (const char* triangle : {"tri_mul_out.", "tri_mul_in."})
      add(block + triangle, {"linear_a_p", "linear_a_g", "linear_b_p", "linear_b_g", "linear_g", "linear_z",
                             "layer_norm_in", "layer_norm_out"});
    for (const char* triangle : {"tri_att_start.", "tri_att_end."})
      add(block + triangle,
          {"layer_norm", "linear", "mha.linear_q", "mha.linear_k", "mha.linear_v", "mha.linear_o", "mha.linear_g"});
    for (const char* mlp : {"mlp_seq.mlp.", "mlp_pair.mlp."}) add(block + mlp, {"0", "1", "3"});
  }
  add("trunk.", {"recycle_s_norm", "recycle_z_norm", "recycle_disto"});
  add("trunk.structure_module.", {"layer_norm_s",
                                  "layer_norm_z",
                                  "linear_in",
                                  "ipa.head_weights",
                                  "ipa.linear_q",
                                  "ipa.linear_kv",
                                  "ipa.linear_q_points",
                                  "ipa.linear_kv_points",
                                  "ipa.linear_b",
                                  "ipa.linear_out",
                                  "layer_norm_ipa",
                                  "transition.layers.0.linear_1",
                                  "transition.layers.0.linear_2",
                                  "transition.layers.0.linear_3",
                                  "transition.layer_norm",
                                  "bb_update.linear",
                                  "angle_resnet.linear_in",
                                  "angle_resnet.linear_initial",
                                  "angle_resnet.layers.0.linear_1",
                                  "angle_resnet.layers.0.linear_2",
                                  "angle_resnet.layers.1.linear_1",
                                  "angle_resnet.layers.1.linear_2",
                                  "angle_resnet.linear_out"});
  add("trunk.", {"trunk2sm_s", "trunk2sm_z"});
  add("", {"distogram_head", "ptm_head", "lm_head", "lddt_head.0", "lddt_head.1", "lddt_head.2", "lddt_head.3"});
  return names;
}

bool is_norm(const std::string& layer) {
  return layer.find("norm") != std::string::npos || layer.find("Norm") != std::string::npos ||
         layer.ends_with("mlp.0") || layer == "lddt_head.0";
}

/// Sets the t-th tensor, from 1, to .2 sin(.7 n + t), plus 1 in weights of norms.
void set_values(Made& made) {
  std::map<std::string, at::Tensor> tensors;  // by the names of transformers
  for (const nn::ExternalName& name : made.model.shape.architecture->hugging_face.names(made.model.shape)) {
    const at::Tensor value = made.parameters.at(name.ours).value.detach();
    const std::vector<at::Tensor> parts = value.chunk(static_cast<int64_t>(name.parts.size()), 0);
    for (size_t i = 0; i < parts.size(); ++i) tensors[name.parts[i].name] = parts[i];
  }
  double t = 0;
  for (const std::string& layer : layers_in_order())
    for (const char* part : {"", ".weight", ".bias"}) {
      const auto found = tensors.find(layer + part);
      if (found == tensors.end()) continue;
      at::Tensor values = (.7 * at::arange(found->second.numel(), at::kDouble) + ++t).sin() * .2;
      if (part == std::string(".weight") && is_norm(layer)) values = values + 1;
      found->second.copy_(values.view(found->second.sizes()));
      tensors.erase(found);
    }
  EXPECT_TRUE(tensors.empty()) << tensors.begin()->first;
}

/// A small model with the golden weights.
struct Golden : Made {
  explicit Golden(at::ScalarType dtype = at::kDouble) : Made(shape_of(small()), true, dtype) { set_values(*this); }
};

tensor::Field field(at::Tensor values) {
  std::vector<tensor::Dim> dims(static_cast<size_t>(values.dim()), tensor::Dim::Other);
  dims.at(0) = tensor::Dim::Row;
  return {std::move(values), std::move(dims)};
}

/// Returns a batch of chains, padded to `residues` or the longest one.
tensor::Batch batch_of(const std::vector<std::string>& chains, int64_t residues = 0,
                       at::ScalarType dtype = at::kDouble) {
  for (const std::string& chain : chains) residues = std::max(residues, static_cast<int64_t>(chain.size()));
  const auto rows = static_cast<int64_t>(chains.size());
  const at::Tensor types = at::zeros({rows, residues}, at::kLong), mask = at::zeros({rows, residues}, dtype);
  for (int64_t row = 0; row < rows; ++row)
    for (size_t i = 0; i < chains[static_cast<size_t>(row)].size(); ++i) {
      types[row][static_cast<int64_t>(i)] = protein::type_of_letter(chains[static_cast<size_t>(row)][i]);
      mask[row][static_cast<int64_t>(i)] = 1;
    }
  tensor::Batch batch;
  batch.add("aatype", field(types));
  batch.add("residue_index", field(at::arange(residues, at::kLong).expand({rows, -1}).contiguous()));
  batch.add("seq_mask", field(mask));
  return batch;
}

States pass(const Model& model, const tensor::Batch& batch, const nn::ForwardContext& step = {}) {
  return run_stage(model, {.last = static_cast<int64_t>(model.blocks.size())}, {}, nn::step_of(batch, step));
}

/// Returns the end of the last of `passes` passes. `keeps_language`: later passes read the field `language_states`.
States folded(const Model& model, const tensor::Batch& chains, int passes = 2, bool keeps_language = true) {
  tensor::Batch batch = with_recycled(chains, {}, model.shape);
  States end = pass(model, batch);
  for (int i = 1; i < passes; ++i) {
    batch = with_recycled(batch, recycled(*model.folding, end, batch), model.shape);
    if (!keeps_language) batch = batch.without("language_states");
    end = pass(model, batch);
  }
  return end;
}

/// Returns the atoms of all layers of the structure module, [layers, B, N, 14, 3].
at::Tensor positions(const FoldingHeads& heads, const States& end, const at::Tensor& types) {
  std::vector<at::Tensor> all;
  for (int64_t layer = 0; layer < end[static_cast<size_t>(heads.frames)].size(1); ++layer) {
    States one = end;
    for (const int state : {heads.frames, heads.angles})
      one[static_cast<size_t>(state)] = end[static_cast<size_t>(state)].narrow(1, layer, 1);
    all.push_back(folded_atoms(heads, one, types).positions14);
  }
  return at::stack(all);
}

TEST(EsmFold, HasTheValuesOfTransformers) {
  const Golden made;
  const FoldingHeads& heads = *made.model.folding;
  const at::NoGradGuard no_grad;
  const tensor::Batch batch = batch_of({"MKTAYIAKQR"});
  const States end = folded(made.model, batch);
  const at::Tensor places = positions(heads, end, batch.at("aatype")), z = end[static_cast<size_t>(heads.pair)];
  // The reference's G35 differs in the ninth digit, because transformers rotates ESM-2's queries and keys in fp32.
  EXPECT_NEAR(golden_sum(places), 15.445748804221, 1e-11);
  EXPECT_NEAR(golden_sum(end[static_cast<size_t>(heads.frames)]), 8.5218029561658, 1e-11);
  EXPECT_NEAR(golden_sum(z), -2.0011127606875, 1e-11);
  EXPECT_NEAR(golden_sum(heads.distogram(z, z.transpose(1, 2))), .24592908233488, 1e-12);
  const at::Tensor pairs = at::ones({1, 10, 10}, at::kDouble), tm = tm_terms(heads.errors(z), batch.at("seq_mask"));
  EXPECT_NEAR(predicted_tm(tm, pairs).item<double>(), .00383048048085, 1e-11);
  const double ca[] = {4.75601686871015, 14.22491773081991, 2.43078777117952};
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(places[1][0][0][1][i].item<double>(), ca[i], 1e-12);
  const at::Tensor lddt = plddt(heads.lddt(end[static_cast<size_t>(heads.structure)]));
  EXPECT_NEAR(lddt[0][0][1].item<double>(), 49.421516410732, 1e-11);
}

TEST(EsmFold, HasTheParametersOfTransformers) {
  const Made made(registry().resolve({.name = "esmfold"}), /*has_memory=*/false);
  EXPECT_EQ(made.parameters.numel(), 3'525'038'915);
  int64_t others = 0;
  for (const nn::ExternalName& name : made.model.shape.architecture->hugging_face.names(made.model.shape))
    if (!name.parts.front().name.starts_with("esm."))
      others += const_cast<Made&>(made).parameters.at(name.ours).spec.numel();
  EXPECT_EQ(others, 692'594'594);
  EXPECT_EQ(folding_of(made.model.shape).passes, 4);
}

TEST(EsmFold, FoldsPaddedChainsAsAlone) {
  const Golden made;
  const at::NoGradGuard no_grad;
  const std::vector<std::string> chains{"MKTAY", "WGPX", "A"};
  const tensor::Batch all = batch_of(chains, 7);
  const States end = folded(made.model, all);
  const FoldingHeads& heads = *made.model.folding;
  const at::Tensor together = folded_atoms(heads, end, all.at("aatype")).positions37,
                   lddt = heads.lddt(end[static_cast<size_t>(heads.structure)]);
  for (size_t i = 0; i < chains.size(); ++i) {
    const auto row = static_cast<int64_t>(i), residues = static_cast<int64_t>(chains[i].size());
    const tensor::Batch batch = batch_of({chains[i]});
    const States alone = folded(made.model, batch);
    const auto off = [&](const at::Tensor& x, const at::Tensor& wanted) {
      return (x[row].narrow(0, 0, residues) - wanted[0]).abs().max().item<double>();
    };
    EXPECT_LT(off(together, folded_atoms(heads, alone, batch.at("aatype")).positions37), 1e-11) << chains[i];
    EXPECT_LT(off(lddt, heads.lddt(alone[static_cast<size_t>(heads.structure)])), 1e-11) << chains[i];
  }
}

TEST(EsmFold, GivesTheSameWithLanguageStates) {
  const Golden made;
  const at::NoGradGuard no_grad;
  const tensor::Batch batch = batch_of({"MKTAY", "WGP"});
  const States with = folded(made.model, batch, 3), without = folded(made.model, batch, 3, false);
  for (size_t i = 0; i < with.size(); ++i)
    EXPECT_TRUE(!with[i].defined() || at::equal(with[i], without[i])) << made.model.states[i].name;
  // A training pass computes them anew, because their layers get gradients.
  const tensor::Batch told =
      with_recycled(batch, {}, made.model.shape).with("language_states", field(at::zeros({2, 5, 16}, at::kDouble)));
  const auto read = [&](bool trains) {
    return pass(made.model, told, {.training = trains})[static_cast<size_t>(made.model.folding->language)];
  };
  EXPECT_EQ(read(false).abs().max().item<double>(), 0);
  EXPECT_GT(read(true).abs().max().item<double>(), 0);
}

TEST(EsmFold, KeepsTheSizesOfItsStates) {
  const Golden made;
  tensor::Batch batch = with_recycled(batch_of({"MKTAY", "WGP"}), {}, made.model.shape);
  for (const bool knows : {false, true}) {
    if (knows) batch = batch.with("language_states", field(at::zeros({2, 5, 16}, at::kDouble)));
    const nn::ForwardContext step = nn::step_of(batch);
    States states;
    for (int64_t i = 0; i < made.model.shape.blocks(); ++i) {
      states = run_stage(made.model, {.first = i, .last = i + 1, .embeds = i == 0, .ends = false}, states, step);
      check_sizes(made.model, states, step, i);
    }
  }
}

/// Returns the gradients of the golden sums of frames and angles of a training pass that is not the first.
std::vector<at::Tensor> gradients(Made& made, nn::Recompute recompute) {
  const tensor::Batch chains = batch_of({"MKTAY", "WGP"});
  tensor::Batch batch = with_recycled(chains, {}, made.model.shape);
  {
    const at::NoGradGuard no_grad;
    batch = with_recycled(batch, recycled(*made.model.folding, pass(made.model, batch), batch), made.model.shape);
  }
  const States end = pass(made.model, batch, {.training = true, .dropout_seed = 5, .recompute = recompute});
  const FoldingHeads& heads = *made.model.folding;
  for (nn::Parameter& p : made.parameters) p.value.mutable_grad() = at::Tensor();
  const at::Tensor loss = test::golden_loss(end[static_cast<size_t>(heads.frames)]) +
                          test::golden_loss(end[static_cast<size_t>(heads.angles)]);
  loss.backward();
  std::vector<at::Tensor> found;
  for (nn::Parameter& p : made.parameters)
    if (!p.name.starts_with("head.")) found.push_back(p.value.grad());
  return found;
}

TEST(EsmFold, RecomputesItsBlocksWithTheSameGradients) {
  Golden made;
  const std::vector<at::Tensor> kept = gradients(made, nn::Recompute::None),
                                again = gradients(made, nn::Recompute::Block);
  ASSERT_EQ(kept.size(), again.size());
  for (size_t i = 0; i < kept.size(); ++i) {
    ASSERT_TRUE(kept[i].defined() && again[i].defined()) << i;
    EXPECT_LT((kept[i] - again[i]).abs().max().item<double>(), 1e-12) << i;
  }
}

TEST(EsmFold, TrainsAllTypesButTheFirst) {
  Golden made;
  const States end = pass(made.model, with_recycled(batch_of({"MKTAYIAKQR"}), {}, made.model.shape));
  const at::Tensor table = made.parameters.at("blocks.2.types.weight").value;
  const at::Tensor gradient =
      torch::autograd::grad({test::golden_loss(end[static_cast<size_t>(made.model.folding->frames)])}, {table})[0];
  const at::Tensor of_rows = gradient.abs().amax(1);
  EXPECT_EQ(of_rows[0].item<double>(), 0) << "alanine, which is transformers' padding";
  EXPECT_GT(of_rows[protein::type_of_letter('K')].item<double>(), 0);
}

TEST(EsmFold, PlacesAtomsInFp32WithNarrowWeights) {
  const Golden made(at::kBFloat16);
  const at::NoGradGuard no_grad;
  const tensor::Batch batch = batch_of({"MKTAYIAKQR"}, 0, at::kFloat);
  const States end = folded(made.model, batch, 1);
  const FoldingHeads& heads = *made.model.folding;
  for (const int state : {heads.frames, heads.angles})
    EXPECT_EQ(end[static_cast<size_t>(state)].scalar_type(), at::kFloat);
  EXPECT_EQ(end[static_cast<size_t>(heads.pair)].scalar_type(), at::kBFloat16);
  const at::Tensor rotation = folded_atoms(heads, end, batch.at("aatype")).backbones.rotation;
  const at::Tensor off = at::matmul(rotation, rotation.transpose(-1, -2)) - at::eye(3);
  EXPECT_LT(off.abs().max().item<double>(), 1e-5);
}

TEST(EsmFold, ReadsAndWritesTheConfigOfTransformers) {
  const ModelShape shape = shape_of(small());
  const json written = shape.architecture->hugging_face.to_json(shape);
  EXPECT_EQ(written["architectures"], small()["architectures"]);
  EXPECT_EQ(shape_of(written), shape) << written.dump();
  const ModelShape published = shape_of({{"model_type", "esm"},
                                         {"is_folding_model", true},
                                         {"hidden_size", 2560},
                                         {"num_hidden_layers", 36},
                                         {"num_attention_heads", 40},
                                         {"intermediate_size", 10240},
                                         {"layer_norm_eps", 1e-5},
                                         {"token_dropout", true},
                                         {"position_embedding_type", "rotary"}});
  EXPECT_EQ(published, registry().resolve({.name = "esmfold"})) << "all other keys have defaults";
}

TEST(EsmFold, RefusesKeysThatChangeNumbers) {
  const auto message = [](const char* key, const json& value) {
    json config = small();
    config["esmfold_config"][key] = value;
    return test::thrown_message([&] { shape_of(config); });
  };
  for (const char* key : {"bypass_lm", "use_esm_attn_map", "esm_ablate_sequence", "esm_ablate_pairwise"})
    EXPECT_THAT(message(key, true),
                HasSubstr(concat("esmfold_config.", key, " of an ESMFold must be false: got true")));
  json config = small();
  config["esmfold_config"]["trunk"]["structure_module"]["num_angles"] = 5;
  EXPECT_THAT(test::thrown_message([&] { shape_of(config); }), HasSubstr("num_angles"));
  config = small();
  config["position_embedding_type"] = "absolute";
  EXPECT_THAT(test::thrown_message([&] { shape_of(config); }), HasSubstr("must be rotary: got absolute"));
  config = small();
  config["vocab_list"] = {"<cls>", "<pad>"};
  config["vocab_size"] = 2;
  EXPECT_THAT(test::thrown_message([&] { shape_of(config); }), HasSubstr("must include <mask>"));
  config = small();
  config["pad_token_id"] = 3;
  EXPECT_THAT(test::thrown_message([&] { shape_of(config); }), HasSubstr("pad_token_id"));
}

}  // namespace
}  // namespace colossal::models::esmfold_test
