// The checkpoints of one training: what the Trainer and a module in training save, and what they go on from.
//
//   Checkpoints checkpoints(folder, engine.mesh(), config.training.keep_last);
//   checkpoints.save(engine);
//   ...
//   const checkpoint::StepFolders steps = checkpoints.steps();
//   if (!steps.complete.empty()) checkpoints.resume(engine, steps);
#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "colossal/checkpoint/newest.h"
#include "colossal/comm/mesh.h"

namespace colossal::train {

/// What a checkpoint is made of, and what goes on from one: an Engine, a module in training.
class Resumable {
 public:
  virtual int64_t steps_done() const = 0;
  /// Everything that the next step depends on: to be saved, or to be filled from a checkpoint.
  virtual checkpoint::TrainingState state() = 0;
  /// Goes on from what state() returned, filled. Collective.
  virtual void loaded(const checkpoint::TrainingState& state) = 0;
  /// Errors: a checkpoint of this progress is of another training. No communication.
  virtual void check_progress(const nlohmann::json& progress) const = 0;

 protected:
  ~Resumable() = default;
};

/// What a run has beside its training.
struct BesideTraining {
  /// Refuses, by an Error, what was saved beside another run. Before anything is changed.
  std::function<void(const nlohmann::json& progress)> check{};
  /// Takes back what was saved beside this one; must not communicate. What one rank refuses, all refuse.
  std::function<void(const nlohmann::json& progress)> restore{};
};

/// All ranks of the mesh make one and call the same members in the same order; they see the same folder.
class Checkpoints {
 public:
  /// `keep_last`: of the newest checkpoints, when one is saved; 0 keeps all. The mesh must outlive it.
  Checkpoints(std::string folder, comm::Mesh& mesh, int64_t keep_last);

  const std::string& folder() const { return folder_; }
  /// The steps in the folder, the same on every rank. Communication and errors: those of checkpoint::agreed_steps.
  checkpoint::StepFolders steps() const;

  /// Saves folder/step-<steps_done>. The keys of `beside`, which is the same on all ranks, are saved with the
  /// training's own progress: where its data stands, which config it has.
  /// Communication and errors: those of checkpoint::save.
  void save(Resumable& training, const nlohmann::json& beside) const;
  void save(Resumable& training) const;

  /// Goes on from the checkpoint of step `wanted`, or, if none is wanted, from the newest that is not damaged. `steps`
  /// is what steps() returned.
  /// Communication: that of checkpoint::load_newest and of training.loaded().
  /// Errors: those of checkpoint::load_newest, of training.check_progress() and of `beside`; the same on every rank,
  ///         and before anything is changed, but for those of `restore`.
  checkpoint::Found resume(Resumable& training, const checkpoint::StepFolders& steps,
                           std::optional<int64_t> wanted = std::nullopt, const BesideTraining& beside = {}) const;

 private:
  std::string folder_;
  comm::Mesh& mesh_;
  int keep_last_;
};

}  // namespace colossal::train
