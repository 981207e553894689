// Runs with adapters on the folder of a model, and what inference computes with the folders that they write.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/infer/generate.h"
#include "colossal/infer/perplexity.h"
#include "colossal/models/registry.h"
#include "colossal/run/adapter_export.h"
#include "colossal/run/adapter_weights.h"
#include "colossal/run/external_names.h"
#include "colossal/run/saved_model.h"
#include "train/whole_runs.h"

namespace colossal::train {

class AdapterFolders : public Run {
 protected:
  using Values = std::map<std::string, at::Tensor>;

  void SetUp() override {
    Run::SetUp();
    folder = base + "/hf";
  }

  /// Trains a model without adapters for three steps in fp64, and writes it to `folder`. `change` may change its sizes.
  void make_base(const std::string& model, const std::function<void(run::Config&)>& change = {}) const {
    run::Config c = make("base", 1, 1);
    c.model.name = model;
    c.model.kv_heads = model == "gpt2-tiny" ? 0 : 2;
    c.model.dropout = 0;
    c.precision.mode = "fp64";
    c.training.steps = 3;
    c.training.evaluate_batches = 0;
    if (change) change(c);
    train(c, Start::New);
    export_model(c.run.folder, folder);
  }

  /// A short run in fp64 with adapters on the model of `from`. `keys` are of [adapter]: "rank=3".
  run::Config adapted(const std::string& name, const std::string& from, const std::vector<std::string>& keys) const {
    run::Config c = make(name, 1, 1);
    c.model = {.from = from};
    c.data.tokenizer = "bytes";
    c.precision.mode = "fp64";
    for (const std::string& key : keys) c.tables.set("--adapter." + key);
    c.optimizer.learning_rate = 0.05;
    c.training.steps = 4;
    c.training.evaluate_batches = 0;
    c.training.save_every = 2;
    return c;
  }
  /// A run that trains the adapters of `adapter` on the model of `folder` further, without a change of their values.
  run::Config further(const std::string& name, const std::string& adapter) const {
    run::Config c = adapted(name, folder, {"from=" + adapter});
    c.optimizer.learning_rate = 0;
    return c;
  }

  /// Calls `work` on each rank of `layout` with the model of a run, a folder or a file.
  static void with_model(const std::string& from, run::Loading loading,
                         const std::function<void(const run::SavedModel&, comm::Mesh&)>& work,
                         const distributed::ParallelConfig& layout = {}) {
    loading.tokenizer = "none";
    comm::run_ranks(static_cast<int>(layout.ranks()), [&](comm::World& world) {
      comm::Mesh mesh(world, layout.ranks() == 1 ? std::vector{comm::Mesh::batch("data", 1)} : layout.axes());
      work(run::load_model(from, mesh, layout, at::kCPU, loading), mesh);
    });
  }
  static Values loaded(const std::string& from, const run::Loading& loading) {
    Values values;
    with_model(from, loading, [&](const run::SavedModel& saved, comm::Mesh&) {
      for (const nn::Parameter& p : saved.model->parameters()) values[p.name] = p.value.detach().clone();
    });
    return values;
  }
  /// Returns the mean negative log-likelihood of a text.
  static double loss(const std::string& from, const run::Loading& loading,
                     const distributed::ParallelConfig& layout = {}) {
    double mean = 0;
    with_model(
        from, loading,
        [&](const run::SavedModel& saved, comm::Mesh& mesh) {
          std::vector<int64_t> ids;
          for (int64_t i = 0; i < 24; ++i) ids.push_back(40 + i * 7 % 60);
          const double own = infer::likelihood(*saved.model, {ids}, {.window = 24}).mean();
          if (mesh.world().rank() == 0) mean = own;
        },
        layout);
    return mean;
  }
  /// Returns the most probable tokens after a prompt.
  static std::vector<int64_t> greedy(const std::string& from, const run::Loading& loading) {
    std::vector<int64_t> tokens;
    with_model(from, loading, [&](const run::SavedModel& saved, comm::Mesh&) {
      infer::Request request{.prompt = {108, 105, 110}};
      request.options.max_tokens = 12;
      request.options.sampling.temperature = 0;
      tokens = infer::generate(*saved.model, request);
    });
    return tokens;
  }

  /// Writes a model as a Hugging Face folder, whose weights are numbers.
  static void export_model(const std::string& from, const std::string& to, const run::Loading& loading = {}) {
    with_model(from, loading, [&](const run::SavedModel& saved, comm::Mesh& mesh) {
      const models::ModelShape& shape = saved.model->model().shape;
      checkpoint::export_weights(to, saved.model->parameters(), run::external_names(shape),
                                 shape.architecture->hugging_face.to_json(shape), mesh.group("data"));
    });
  }
  /// Writes the adapters of a run as a folder of peft.
  static void export_adapters(const std::string& run_folder, const std::string& to) {
    with_model(run_folder, {.merges_adapters = false}, [&](const run::SavedModel& saved, comm::Mesh& mesh) {
      run::export_adapters(to, saved, run::open_adapters(run_folder), mesh);
    });
  }
  /// Returns the options that load a model with the adapters of a folder.
  static run::Loading with(const std::string& adapter, bool merges = true) {
    return {.adapter = run::AdapterChoice{.folder = adapter}, .merges_adapters = merges, .dtype = at::kDouble};
  }

  std::string folder;  ///< the base model
};

}  // namespace colossal::train
