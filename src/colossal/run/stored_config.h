// The config of a run with the files of its run folder in place of the sources from which it started, which may have
// moved or may be deleted.
//
//   const run::Config config = run::stored_config("runs/sft");
//   config.model.from;       // "runs/sft", which has the config.json of the run's model
//   config.tokenizer();      // "runs/sft", which has the tokenizer's files
#pragma once
#include <string>

#include "colossal/run/config.h"

namespace colossal::run {

/// Returns true if the folder is a run folder: it has a config.toml.
bool is_run(const std::string& folder);

/// Reads the config of a run folder. In the result, model.from is the folder if it has the config.json of a run that
/// started from a source, and data.tokenizer is never "auto": it is the folder, or the file in it, if the run has a
/// tokenizer other than "bytes" and the folder has its files. Older folders have neither and need the sources.
/// adapter.from is empty, because the run has all other keys of its adapters, and their values; but of an IP-adapter,
/// whose encoder of pictures it leads to.
/// Errors ("run"): a source is needed, and there is no such file or folder. Errors of read_config().
Config stored_config(const std::string& folder);

/// Returns `config` for a run that continues in its folder. model.from and data.tokenizer become those of
/// stored_config() if they are the ones with which the run started and nothing is at their paths any more. If the
/// folder has no config.toml, `config` is returned as it is.
Config with_stored_sources(Config config, const std::string& folder);

/// Checks that a run does not replace what it starts from: model.from must not be its folder, and a run that overwrites
/// another one must not read its tokenizer from there. Errors ("run"): it would.
void check_sources_stay(const Config& config, bool overwrites);

}  // namespace colossal::run
