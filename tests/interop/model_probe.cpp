// Runs our models, from the library and from examples/own_model, for the scripts that compare them with transformers.
//
// Usage: colossal_model_probe FOLDER BATCH OUT [--section.key=value ...]
//   reads the Hugging Face folder FOLDER and BATCH, a safetensors file with `inputs`, `labels` and perhaps `documents`;
//   runs one training step in fp64 on threads, as the flags lay them out, and writes
//   OUT/logits.safetensors (logits [B, S, V] or [B, 1, classes], and the loss) and, as Hugging Face folders of their
//   own, OUT/gradients and OUT/weights.
//
//        colossal_model_probe configs FILE
//   reads FILE, a list of what config.json may hold, and prints a list of what we would write for the model that each
//   describes, {"config": ...}, or why we refuse it, {"error": ...}.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/data/batch_fields.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/run/external_names.h"
#include "colossal/train/engine.h"
#include "stablelm.h"

namespace {

using namespace colossal;

using Tensors = std::map<std::string, at::Tensor>;

/// Copies a rank's blocks of a parameter into the whole tensor.
void put_blocks(Tensors& whole, const nn::Parameter& p, const at::Tensor& local,
                const tensor::MeshCoordinates& coordinates) {
  at::Tensor& all = whole[p.name];
  if (!all.defined()) all = at::full(p.spec.shape, std::nan(""), at::kDouble);
  for (const tensor::LocalBox& block : p.spec.local_boxes(coordinates)) {
    at::Tensor to = all, from = local;
    for (size_t d = 0; d < block.size.size(); ++d) {
      const auto dim = static_cast<int64_t>(d);
      to = to.narrow(dim, block.start[d], block.size[d]);
      from = from.narrow(dim, block.local_start[d], block.size[d]);
    }
    to.copy_(from);
  }
}

/// Writes tensors with our names as a folder with transformers' names. Buffers without a tensor are zeros.
void write_folder(const std::string& path, const models::ModelShape& shape, const Tensors& tensors) {
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {{"data", 1}});
    nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble});
    nn::SerialLayers layers(parameters);
    models::make_model(shape, layers);
    const at::NoGradGuard no_grad;
    for (nn::Parameter& p : parameters) p.value.copy_(tensors.at(p.name));
    for (nn::Buffer& b : parameters.buffers())
      if (tensors.contains(b.name)) b.value.copy_(tensors.at(b.name));
    checkpoint::export_weights(path, parameters, run::external_names(shape),
                               shape.architecture->hugging_face.to_json(shape), mesh.group("data"));
  });
}

tensor::Batch read_batch(const std::string& path) {
  const checkpoint::SafetensorsReader file(path);
  const auto read = [&](const char* name) { return file.contains(name) ? file.tensor(name).clone() : at::Tensor(); };
  const at::Tensor inputs = read("inputs"), labels = read("labels"), documents = read("documents");
  if (inputs.dim() != 2) return data::image_batch(inputs, labels);
  return data::text_batch(inputs, labels, at::arange(inputs.size(1), at::kLong).expand_as(inputs).contiguous(),
                          documents.defined() ? documents : at::zeros_like(inputs),
                          labels.size(1) == 1 ? tensor::Dim::Other : tensor::Dim::Token);
}

struct Results {
  Tensors gradients, weights, logits;
};

Results step(const std::string& folder, const tensor::Batch& batch, const run::Config& config,
             const models::ModelShape& shape) {
  Results results;
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = train::initialize(world, config, shape);
    checkpoint::import_weights(folder, engine->parameters(), engine->weights(), run::external_names(shape));
    engine->weights_loaded();
    engine->zero_grad();
    const double loss = engine->train_step(batch);
    const auto head = [&](int, const models::States& end, const nn::ForwardContext& its_step) {
      return engine->distributed().decoding_model().head->logits(end[0], its_step);
    };
    const at::NoGradGuard no_grad;
    // Its sizes matter for pipelines alone, which broadcast the logits of a text.
    const at::Tensor like =
        at::empty({batch.rows(), batch.has_tokens() ? batch.tokens() : 1, shape.vocabulary}, at::kDouble);
    const at::Tensor logits = engine->distributed().everywhere(nn::step_of(batch), head, like);
    const std::lock_guard lock(mutex);
    const tensor::MeshCoordinates& coordinates = engine->mesh().coordinates();
    for (const nn::Parameter& p : engine->parameters()) {
      put_blocks(results.gradients, p, p.value.grad(), coordinates);
      put_blocks(results.weights, p, p.value.detach(), coordinates);
    }
    for (const nn::Buffer& b : engine->parameters().buffers())
      if (b.value.defined() && b.use == nn::BufferUse::Model)
        put_blocks(results.weights, b, b.value.detach(), coordinates);
    results.logits = {{"logits", logits.contiguous()}, {"loss", at::scalar_tensor(loss, at::kDouble)}};
  });
  return results;
}

models::Registry all_models() {
  models::Registry models = models::built_in();
  models.add(stablelm_architecture());
  return models;
}

nlohmann::json made_of(const nlohmann::json& configs) {
  const models::Registry models = all_models();
  nlohmann::json made = nlohmann::json::array();
  for (const nlohmann::json& config : configs) {
    try {
      const models::ModelShape shape = models.shape_of(config);
      made.push_back({{"config", shape.architecture->hugging_face.to_json(shape)}});
    } catch (const std::exception& error) {
      made.push_back({{"error", error.what()}});
    }
  }
  return made;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc == 3 && argv[1] == std::string("configs")) {
    std::ifstream file(argv[2]);
    std::printf("%s\n", made_of(nlohmann::json::parse(file)).dump().c_str());
    return 0;
  }
  require(argc >= 4, "probe", "at least three arguments are expected: got ", argc - 1);
  const std::string folder = argv[1], out = argv[3];
  const tensor::Batch batch = read_batch(argv[2]);
  ConfigDocument flags;
  for (int i = 4; i < argc; ++i) flags.set(argv[i]);
  run::Config config;
  flags.read(config);
  require(config.parallel.data == 1, "probe", "one replica is expected");
  config.precision.mode = "fp64";
  config.model.from = folder;
  config.training.batch_size = batch.rows();
  if (batch.has_tokens()) config.data.sequence = batch.tokens();
  const models::ModelShape shape = all_models().resolve(config.model);
  const Results results = step(folder, batch, config, shape);
  std::filesystem::create_directories(out);
  checkpoint::write_safetensors(out + "/logits.safetensors", results.logits);
  write_folder(out + "/gradients", shape, results.gradients);
  write_folder(out + "/weights", shape, results.weights);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
