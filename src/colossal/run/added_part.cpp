#include "colossal/run/added_part.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "colossal/base/run_folder.h"
#include "colossal/comm/agreement.h"
#include "colossal/run/adapter_source.h"
#include "colossal/run/average_weights.h"
#include "colossal/run/data.h"
#include "colossal/run/low_rank_adapter.h"
#include "colossal/run/model_source.h"
#include "colossal/run/stored_config.h"

namespace colossal::run {

bool is_run_of(const AddedPart& part, const std::string& path) {
  return is_run(path) && adapter_keys(stored_config(path)).kind == part.kind;
}

PartTensors take_part(const AddedPart& part, const nn::Parameters& parameters, PartTensors& tensors) {
  const auto is_other = [&](const checkpoint::NamedTensor& tensor) {
    const auto& all = parameters.declared();
    const auto found = std::find_if(all.begin(), all.end(), [&](const auto& p) { return p.name == tensor.name; });
    return found == all.end() || !found->is_added || !part.is_of(tensor.name);
  };
  const auto first = std::stable_partition(tensors.begin(), tensors.end(), is_other);
  PartTensors taken(std::make_move_iterator(first), std::make_move_iterator(tensors.end()));
  tensors.erase(first, tensors.end());
  return taken;
}

std::unique_ptr<nn::Parameters> part_alone(const AddedPart& part, const nn::Parameters& parameters,
                                           const PartTensors* values) {
  std::map<std::string, const nn::Parameter*> found;
  for (const nn::Parameter& p : parameters.declared())
    if (p.model.empty() && part.is_of(p.name)) found[p.name] = &p;
  nn::Parameters::Options options{.dtype = parameters.options().dtype, .without_memory = true};
  if (!values) options.device = at::kMeta;
  options.stages = [found](const std::string& name) { return found.at(name)->spec.stages; };
  auto own = std::make_unique<nn::Parameters>(parameters.coordinates(), options);
  for (const nn::Parameter& p : parameters.declared())
    if (found.contains(p.name)) own->add(p.name, p.spec, p.init, p.decay > 0);
  for (const checkpoint::NamedTensor& tensor : values ? *values : PartTensors())
    own->at(tensor.name).value = tensor.value.read().value;
  return own;
}

void fill_part(const AddedPart& part, const std::string& path, const nn::Parameters& parameters, PartTensors tensors,
               comm::Mesh& mesh, bool uses_average, const ModelSource* base,
               const std::function<void(const nn::Parameters& alone, const PartTensors& tensors)>& read) {
  std::string newest;  // of a run
  comm::agree(mesh.all(), at::kCPU, [&] {
    if (!is_run_of(part, path)) return read(*part_alone(part, parameters), tensors);
    newest = newest_checkpoint(path, checkpoint::step_folders(RunFolder(path).checkpoints()));
    if (base && mesh.world().rank() == 0) check_same_base({.path = path, .checkpoint = newest}, *base);
  });
  newest = comm::broadcast_text(mesh.all(), at::kCPU, 0, newest);  // the run may save a newer one meanwhile
  if (newest.empty()) return;
  checkpoint::TrainingState state;
  for (checkpoint::NamedTensor& tensor : tensors) {
    tensor.name = "model." + tensor.name;
    state.tensors.push_back(std::move(tensor));
  }
  checkpoint::load(newest, state, mesh.all(), mesh.coordinates(), "model.", {},
                   averages_in(newest, uses_average, state));
}

void copy_into_part(const AddedPart& part, const ModelSource& base, const nn::Parameters& parameters,
                    const PartTensors& tensors, comm::Mesh& mesh) {
  PartTensors copies;
  for (const checkpoint::NamedTensor& tensor : tensors)
    if (const auto origin = part.origin(tensor.name)) {
      copies.push_back(tensor);
      copies.back().name = *origin;
    }
  read_source(base, parameters, std::move(copies), mesh, "");
}

}  // namespace colossal::run
