// The checkpoints of one training run, which Trainer and ModuleTraining save and resume from.
//
//   Checkpoints checkpoints(folder, engine.mesh(), config.training.keep_last);
//   checkpoints.save(engine);
//   ...
//   const checkpoint::StepFolders steps = checkpoints.steps();
//   if (!steps.complete.empty()) checkpoints.resume(engine, steps);
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "colossal/base/json.h"
#include "colossal/checkpoint/newest.h"
#include "colossal/comm/mesh.h"

namespace colossal::train {

/// An object that can be saved to a checkpoint and resumed from one: an Engine or a ModuleTraining.
class Resumable {
 public:
  /// Returns the number of finished steps.
  virtual int64_t steps_done() const = 0;
  /// Returns all state on which the next step depends, to be saved, or to be filled from a checkpoint.
  virtual checkpoint::TrainingState state() = 0;
  /// Continues from a filled state(). Collective.
  virtual void loaded(const checkpoint::TrainingState& state) = 0;
  /// Checks the progress of a checkpoint. Errors: it belongs to another training run. No communication.
  virtual void check_progress(const nlohmann::json& progress) const = 0;

 protected:
  ~Resumable() = default;
};

/// The checkpoint from which a user-defined module continues.
struct Resumed {
  int64_t step = 0;
  nlohmann::json extra{};  ///< the caller's value that was saved with it; null = none
  /// Keys whose values change how the training continues: "optimizer.learning_rate = 0.1 -> 0.2"; empty = none
  std::string changes{};
};

/// Callbacks for state that a run saves in addition to its training. An empty function is not called.
struct BesideTraining {
  /// Throws an Error if the progress belongs to another run. Called before any change.
  std::function<void(const nlohmann::json& progress)> check{};
  /// Restores the run's own state. Must not communicate. An error on one rank is thrown on all ranks.
  std::function<void(const nlohmann::json& progress)> restore{};
};

/// Saves and loads the checkpoints in one folder. All ranks of the mesh make one and call the same members in the same
/// order. They must see the same folder.
class Checkpoints {
 public:
  /// `keep_last` is the number of newest checkpoints that a save keeps; 0 = keep all. The mesh must outlive it.
  Checkpoints(std::string folder, comm::Mesh& mesh, int64_t keep_last);

  const std::string& folder() const { return folder_; }
  /// Returns the steps in the folder, the same on every rank. Communication and errors: as checkpoint::agreed_steps().
  checkpoint::StepFolders steps() const;

  /// Saves folder/step-<steps_done>. The keys of `beside` are saved with the training's own progress, for example its
  /// position in the data and its config. `beside` must be the same on all ranks. `held`: the lock of the run folder,
  /// if the caller holds it on rank 0.
  /// Communication and errors: as checkpoint::save().
  void save(Resumable& training, const nlohmann::json& beside, const RunLock* held = nullptr) const;
  /// Saves without further keys.
  void save(Resumable& training) const;

  /// Continues from the checkpoint of step `wanted`, or, without it, from the newest undamaged one. `steps` is the
  /// result of steps(). Averages of weights (training.ema) that the checkpoint lacks begin with the weights; those that
  /// the training does not have are dropped.
  /// Communication: as checkpoint::load_newest() and training.loaded().
  /// Errors: as checkpoint::load_newest(), training.check_progress() and the callbacks of `beside`. They are the same
  ///         on every rank. They are thrown before any change, except the errors of `restore`.
  checkpoint::Found resume(Resumable& training, const checkpoint::StepFolders& steps,
                           std::optional<int64_t> wanted = std::nullopt, const BesideTraining& beside = {}) const;

 private:
  std::string folder_;
  comm::Mesh& mesh_;
  int keep_last_;
};

}  // namespace colossal::train
