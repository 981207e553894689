#include "colossal/run/named_adapters.h"

#include <set>
#include <string>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/comm/agreement.h"
#include "colossal/run/adapter_source.h"
#include "colossal/run/adapter_weights.h"

namespace colossal::run {
namespace {

std::string advice_to_merge(const ModelSource& about, const AdapterChoice& choice) {
  return concat("; merge this adapter with `colossal export --from ", about.path, " --adapter ", choice.folder,
                " --to FOLDER`, and load the result by itself");
}

/// Opens an adapter, and checks that requests can choose it. It does not communicate.
AdapterSource open_named(const AdapterChoice& choice, const ModelSource& about, bool is_first) {
  AdapterSource source = open_adapters(choice.folder);
  source.uses_average = about.uses_average;
  source.scale = choice.scale;
  if (is_first && !source.peft) check_same_base(source, about);
  const LowRankKeys keys = keys_of(source, about.shape);
  const std::string advice = advice_to_merge(about, choice);
  require(keys.trained.empty(), "adapter", "adapters that requests choose must not have modules that were trained ",
          "whole: ", choice.folder, " has ", join(keys.trained), advice);
  require(keys.kind != "dora", "adapter",
          "adapters that requests choose must not have magnitudes (DoRA): ", choice.folder, " has some", advice);
  return source;
}

void check_names(const std::vector<AdapterChoice>& choices) {
  std::set<std::string> names;
  for (const AdapterChoice& choice : choices) {
    require(!choice.name.empty(), "adapter", "an adapter that requests choose must have a name: got none for ",
            choice.folder);
    require(names.insert(choice.name).second, "adapter", "adapters must have different names: got ", choice.name,
            " twice; name one with --adapter NAME=FOLDER");
  }
}

}  // namespace

std::unique_ptr<nn::TokenAdapters> read_named_adapters(const std::vector<AdapterChoice>& choices,
                                                       const ModelSource& about, comm::Mesh& mesh) {
  std::vector<AdapterSource> sources;
  comm::agree(mesh.all(), at::kCPU, [&] {
    check_names(choices);
    require(!about.low_rank, "adapter", "adapters that requests choose must be for a model without adapters: got ",
            about.path, ", whose adapters are not merged; write its merged model with `colossal export --from ",
            about.path, " --to FOLDER`, and name that");
    for (const AdapterChoice& choice : choices) sources.push_back(open_named(choice, about, mesh.all().rank() == 0));
  });
  auto adapters = std::make_unique<nn::TokenAdapters>();
  for (size_t i = 0; i < sources.size(); ++i) {
    const AdapterWeights weights = read_adapters(sources[i], about.shape, mesh);
    comm::agree(mesh.all(), at::kCPU, [&] {
      for (const AdapterLayer& layer : weights.layers) {
        require(!layer.module.is_stack(), "adapter",
                "adapters that requests choose must not have adapters of experts: ", choices[i].folder, " has some of ",
                layer.module.name, advice_to_merge(about, choices[i]));
        adapters->add({.adapter = static_cast<int64_t>(i),
                       .weight = layer.module.weight,
                       .first_output = layer.module.part.first,
                       .outputs = layer.module.part.count,
                       .a = layer.a,
                       .b = layer.b,
                       .scale = layer.scale});
      }
    });
  }
  return adapters;
}

}  // namespace colossal::run
