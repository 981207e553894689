#include "colossal/train/checkpoints.h"

#include <utility>

#include "colossal/base/json.h"
#include "colossal/comm/agreement.h"
#include "colossal/run/average_weights.h"

namespace colossal::train {

Checkpoints::Checkpoints(std::string folder, comm::Mesh& mesh, int64_t keep_last)
    : folder_(std::move(folder)), mesh_(mesh), keep_last_(static_cast<int>(keep_last)) {}

checkpoint::StepFolders Checkpoints::steps() const { return checkpoint::agreed_steps(folder_, mesh_.all()); }

void Checkpoints::save(Resumable& training, const nlohmann::json& beside, const RunLock* held) const {
  const auto busy = mesh_.world().busy("saving a checkpoint");
  checkpoint::TrainingState state = training.state();
  state.progress.update(beside);
  checkpoint::save(folder_, training.steps_done(), state, mesh_.all(), mesh_.coordinates(), keep_last_, held);
}

void Checkpoints::save(Resumable& training) const { save(training, nlohmann::json::object()); }

checkpoint::Found Checkpoints::resume(Resumable& training, const checkpoint::StepFolders& steps,
                                      std::optional<int64_t> wanted, const BesideTraining& beside) const {
  const auto busy = mesh_.world().busy("reading a checkpoint in " + folder_);
  checkpoint::TrainingState state = training.state();
  const auto check = [&](const nlohmann::json& progress) {
    if (beside.check) beside.check(progress);
    training.check_progress(progress);
  };
  // A run may begin an average of its weights, or end it (training.ema).
  checkpoint::Found found =
      checkpoint::load_newest(folder_, steps, wanted, state, mesh_.all(), mesh_.coordinates(), check,
                              run::names_of_averages(state), run::beginnings_of_averages(state));
  if (beside.restore) comm::agree(mesh_.all(), at::kCPU, [&] { beside.restore(state.progress); });
  training.loaded(state);
  return found;
}

}  // namespace colossal::train
