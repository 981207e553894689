// The folder of a run at its start: rank 0 locks it, puts earlier runs and checkpoints aside, and writes the files that
// describe the run.
//
//   const auto lock = take_folder(folder, start, notices);            // before any rank reads the folder
//   set_aside_steps(folder, start, steps, resumed_after, log);        // after this run has loaded its start
//   write_start_files(folder, {.config = to_toml(config)});
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/log.h"
#include "colossal/base/run_folder.h"
#include "colossal/checkpoint/folder.h"
#include "colossal/comm/mesh.h"
#include "colossal/report/run_records.h"

namespace colossal::train {

enum class Start;  // train/trainer.h

/// Creates the folder and returns its lock. Unless the start is New, puts back a run that was set aside by one without
/// a checkpoint, and adds a sentence about it to `notices`.
/// Errors ("run"): another run writes to the folder; with Start::New the folder holds a checkpoint, also an incomplete
///                 one.
std::unique_ptr<RunLock> take_folder(const RunFolder& folder, Start start, std::vector<std::string>& notices);

/// Sets aside the checkpoints of `steps` that this run does not continue from, with Start::Overwrite the whole earlier
/// run. Logs a warning for each checkpoint. `resumed_after` is the step of the checkpoint that was loaded; none: the
/// run starts from scratch, and what it has prepared is put into its place (run::place_reference).
void set_aside_steps(const RunFolder& folder, Start start, const checkpoint::StepFolders& steps,
                     std::optional<int64_t> resumed_after, const Log& log);

/// The contents of the files that describe a run.
struct StartFiles {
  std::string config;           ///< config.toml
  std::string prediction = {};  ///< prediction.json, without its line end; empty = none, and an earlier file is removed
  int64_t matmul = 0;           ///< ops::MatmulChoice::encode()
  std::string builtin_text = {};  ///< path of the text to copy as the run's builtin_text; empty = none
};
/// Creates the folder if it was set aside, and writes the files.
void write_start_files(const RunFolder& folder, const StartFiles& files);
/// Returns StartFiles::matmul of an earlier start in the folder; nothing if there was none. A run that resumes without
/// a checkpoint then has the libraries of its first start, because others would round differently.
std::optional<int64_t> stored_matmul(const RunFolder& folder);

/// Returns the record of a start that has just happened: time, versions, layout, `model`, its number of parameters, and
/// this machine.
report::StartRecord start_record(comm::Mesh& mesh, const std::string& model, int64_t parameters);

}  // namespace colossal::train
