// Folds chains with an ESMFold from a folder, for the script that compares it with transformers.
//
// Usage: colossal_folding_probe FOLDER BATCH OUT DTYPE PASSES AGAIN
//   reads the folder and BATCH, a safetensors file with aatype, residue_index and seq_mask [B, N], runs PASSES passes
//   in DTYPE (float or double), and writes OUT, a safetensors file with positions [B, N, 14, 3], frames,
//   unnormalized_angles, s_s, s_z, distogram_logits, ptm_logits and lddt_head [B, N, 37, 50] of the last pass; and the
//   folder again to AGAIN.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstdio>
#include <exception>
#include <map>
#include <string>

#include "colossal/base/json.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/models/built_in.h"
#include "colossal/models/folding/folding_model.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/run/external_names.h"

namespace {

using namespace colossal;

tensor::Batch read_batch(const std::string& path, at::ScalarType dtype) {
  const checkpoint::SafetensorsReader file(path);
  tensor::Batch batch;
  for (const auto& [name, entry] : file.entries()) {
    const at::Tensor x = file.tensor(name).clone();
    batch.add(name, {name == "seq_mask" ? x.to(dtype) : x, {tensor::Dim::Row, tensor::Dim::Other}});
  }
  return batch;
}

models::States pass(const models::Model& model, const tensor::Batch& batch) {
  return models::run_stage(model, {.last = model.shape.blocks()}, {}, nn::step_of(batch));
}

std::map<std::string, at::Tensor> folded(const models::Model& model, const tensor::Batch& chains, int passes) {
  const models::FoldingHeads& heads = *model.folding;
  tensor::Batch batch = models::with_recycled(chains, {}, model.shape);
  models::States end = pass(model, batch);
  for (int i = 1; i < passes; ++i) {
    batch = models::with_recycled(batch, models::recycled(heads, end, batch), model.shape);
    end = pass(model, batch);
  }
  const auto state = [&](int index) { return end[static_cast<size_t>(index)]; };
  const at::Tensor z = state(heads.pair);
  return {{"positions", models::folded_atoms(heads, end, chains.at("aatype")).positions14},
          {"frames", state(heads.frames)},
          {"unnormalized_angles", state(heads.angles)},
          {"s_s", state(heads.single)},
          {"s_z", z},
          {"distogram_logits", heads.distogram(z, z.transpose(1, 2))},
          {"ptm_logits", heads.errors(z)},
          {"lddt_head", heads.lddt(state(heads.structure))}};
}

void fold(char** words) {
  const std::string folder = words[1], again = words[6];
  const at::ScalarType dtype = std::string(words[4]) == "double" ? at::kDouble : at::kFloat;
  const at::NoGradGuard no_grad;
  const nlohmann::json config = checkpoint::read_config(folder);
  const models::ModelShape shape = models::Registry().add(models::esmfold_architecture()).shape_of(config);
  const checkpoint::ExternalNames names = run::external_names(shape);
  nn::Parameters parameters({}, {.dtype = dtype});
  nn::SerialLayers layers(parameters);
  const models::Model model = models::make_model(shape, layers);
  checkpoint::import_weights(folder, parameters, names);
  std::map<std::string, at::Tensor> results = folded(model, read_batch(words[2], dtype), std::stoi(words[5]));
  for (auto& [name, x] : results) x = x.contiguous();
  checkpoint::write_safetensors(words[3], results);
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {{"data", 1}});
    checkpoint::export_weights(again, parameters, names, shape.architecture->hugging_face.to_json(shape),
                               mesh.group("data"), int64_t{1} << 30, checkpoint::dtypes_in(folder, names, at::kFloat));
  });
}

}  // namespace

int main(int count, char** words) {
  if (count != 7) return std::fprintf(stderr, "six words are needed\n"), 2;
  try {
    fold(words);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
