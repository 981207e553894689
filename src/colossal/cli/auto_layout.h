// [parallel] auto: the layout that a run of `colossal train` gets.
//
//   ChosenLayout layout = choose_layout(config, shape, ranks, say);   // one process, before ranks start
//   print_layout(layout, config);
//   write_file(path, encode(layout));                                 // every rank reads it
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "colossal/base/fields.h"
#include "colossal/comm/launch/device.h"
#include "colossal/comm/world.h"
#include "colossal/plan/prediction.h"
#include "colossal/run/config.h"
#include "colossal/run/program.h"

namespace colossal::cli {

/// A layout, and what was predicted of it.
struct ChosenLayout {
  std::string table;  ///< TOML of the keys that were chosen (run::layout_table)
  std::string why;    ///< comparison with plain data parallelism; "kept from ..." for a resumed run
  std::optional<plan::Prediction> prediction;  ///< nothing: the run folder of a resumed run has none

  void fields(Fields& f);
};

/// Returns the ranks of a run with parallel.auto: those of the launcher, else parallel.ranks, else one for each GPU.
/// Errors ("parallel"): parallel.ranks that differ from the launcher's; no launcher, no parallel.ranks and no GPU.
int64_t ranks_of_auto(const distributed::ParallelConfig& parallel, const run::RunConfig& run,
                      const comm::Devices& devices);

/// Searches the fastest layout of `ranks` ranks on this hardware, for at most 8 s. Prints a notice if the times of
/// this machine are rough. With `resumes` it returns the layout in the run folder, if that has as many ranks: only the
/// same layout resumes bitwise. No communication.
/// Errors: those of run::resolve_model(), run::choose_cluster() and predict::search().
ChosenLayout choose_layout(const run::Config& config, const run::Program& program, int64_t ranks, bool resumes);

/// Does the same on rank 0 of `world`, prints the layout there, and returns it on all ranks. Collective among all
/// ranks; the others wait for the search. Errors: the same on all ranks.
ChosenLayout choose_layout_together(comm::World& world, const run::Config& config, const run::Program& program,
                                    bool resumes);

/// Returns `config` with the layout, and parallel.auto off.
run::Config with_layout(const run::Config& config, const ChosenLayout& layout);

/// Formats the layout for a file or a message; decode() reads it. Errors ("plan"): the text is no such object.
std::string encode(const ChosenLayout& layout);
ChosenLayout decode(const std::string& text);
/// Reads a file with the text of encode(). Errors ("file"): it cannot be read; those of decode().
ChosenLayout read_layout(const std::string& path);

/// A file for the processes that this one starts. Only this user can read it. It is removed at the end.
class LayoutFile {
 public:
  /// Errors ("plan"): the folder for temporary files takes no file.
  explicit LayoutFile(const std::string& text);
  ~LayoutFile();
  LayoutFile(const LayoutFile&) = delete;
  LayoutFile& operator=(const LayoutFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Prints the table on standard error, with its reason and the predicted step.
void print_layout(const ChosenLayout& layout);

}  // namespace colossal::cli
