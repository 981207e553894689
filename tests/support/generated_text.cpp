#include "support/generated_text.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "colossal/base/bytes.h"
#include "colossal/base/config.h"
#include "colossal/base/file.h"
#include "colossal/base/run_folder.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/infer/generate.h"
#include "colossal/models/registry.h"
#include "colossal/run/data.h"
#include "colossal/run/saved_model.h"

namespace colossal::test {

void write_model(const TemporaryFolder& folder, const std::string& name, int64_t vocabulary) {
  run::Config config;
  config.model = {.name = name, .vocabulary = vocabulary, .hidden = 64, .layers = 5, .heads = 4, .positions = 32};
  config.data.tokenizer = "bytes";
  const RunFolder run(folder / "run");
  run.create();
  write_file(run.config(), to_toml(config));
  const models::ModelShape shape = run::resolve_model(config, models::built_in()).shape;
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    distributed::DistributedModel model(mesh, {}, shape, {.seed = 5}, {});
    const at::NoGradGuard no_grad;
    checkpoint::TrainingState state;
    for (nn::Parameter& p : model.parameters()) {
      if (p.value.dim() > 1) p.value.mul_(20);  // because otherwise all tokens are almost equally likely
      state.tensors.push_back({"model." + p.name, p.value.detach(), p.spec});
    }
    checkpoint::save(run.checkpoints(), 1, state, mesh.all(), mesh.coordinates(), 1);
    const models::HuggingFace& form = shape.architecture->hugging_face;
    checkpoint::export_weights(folder / "hf", model.parameters(),
                               {form.names(shape), form.prefix, form.ignored_names()}, form.to_json(shape),
                               mesh.group("data"));
  });
}

Continued generated(const Asked& asked) {
  Continued text;
  comm::run_ranks(static_cast<int>(asked.layout.ranks()), [&](comm::World& world) {
    comm::Mesh mesh(world, asked.layout.axes());
    const at::Device device = asked.devices[std::min(static_cast<size_t>(world.rank()), asked.devices.size() - 1)];
    const run::SavedModel saved = run::load_model(asked.from, mesh, asked.layout, device,
                                                  {.tokenizer = "bytes",
                                                   .dtype = asked.dtype,
                                                   .memory = asked.memory,
                                                   .packing = asked.packing,
                                                   .packs_later = asked.packs_later});
    const run::StreamedWeights* weights = saved.weights.get();
    const int64_t before = weights ? weights->store().counts().loaded : 0;
    const std::vector<int64_t> tokens =
        infer::generate(*saved.model, {.prompt = saved.tokenizer->encode_prompt("To be"),
                                       .options = {.max_tokens = kNew, .sampling = asked.sampling}});
    if (world.rank() != 0) return;
    text.tokens = tokens;
    for (const nn::Parameter& p : saved.model->parameters()) {
      text.all += static_cast<int64_t>(p.value.numel() * p.value.element_size());
      ++text.parameters;
    }
    if (!weights) return;
    text.counts = weights->tiers().counts(), text.stayed = weights->stayed_bytes();
    text.on_device = weights->device_bytes(), text.on_device_max = weights->peak_device_bytes();
    text.copied = weights->store().counts().loaded - before;
  });
  return text;
}

run::MemoryConfig in_tiers(int64_t host, const std::string& disk, const std::string& placement) {
  run::MemoryConfig memory;
  memory.host = host, memory.disk = disk, memory.placement = placement;
  return memory;
}

int64_t min_budget_in(const std::string& message, const std::string& what) {
  EXPECT_NE(message.find(what), std::string::npos) << message;
  const std::string before = "works is \"";
  const size_t begin = message.find(before);
  if (begin == std::string::npos) {
    ADD_FAILURE() << message;
    return 0;
  }
  const size_t first = begin + before.size();
  return parse_bytes(message.substr(first, message.find('"', first) - first)).value_or(0);
}

}  // namespace colossal::test
