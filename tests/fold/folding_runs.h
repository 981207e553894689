// Runs that learn to fold: a small model on drawn folds of 7 residues, in fp64.
#pragma once
#include <string>
#include <vector>

#include "colossal/fold/rows.h"
#include "colossal/run/config.h"
#include "colossal/run/program.h"
#include "support/paths.h"
#include "support/run_courses.h"
#include "support/small_folding_model.h"

namespace colossal::fold {

/// Returns the program with the small model, which reads no alignments.
inline run::Program folding_program() {
  run::Program program = run::built_in();
  program.models.add(test::small_folding());
  return with_folding(std::move(program));
}

/// Returns a config of examples/folds.toml with the small model, all terms that it has, and 3 passes at most.
inline run::Config folding_run(const std::vector<std::string>& flags = {}) {
  const std::vector<std::string> own{"--model.name=small-folding",
                                     "--run.device=cpu",
                                     "--run.matmul=mkl",
                                     "--precision.mode=fp64",
                                     "--parallel.chunk_mib=0.005",
                                     "--folding.crop=7",
                                     "--folding.passes=3",
                                     "--folding.weights.side_chains=0.5",
                                     "--folding.weights.chi=1",
                                     "--folding.weights.plddt=0.01",
                                     "--folding.weights.pae=0.1",
                                     "--folding.weights.violation=0.02",
                                     "--optimizer.warmup_steps=0",
                                     "--optimizer.schedule=constant",
                                     "--optimizer.learning_rate=1e-3",
                                     "--training.batch_size=4",
                                     "--training.steps=5",
                                     "--training.sample_tokens=0",
                                     "--training.evaluate_batches=1"};
  return run::read_given_config(test::source_dir() + "/examples/folds.toml", test::joined(own, flags)).config;
}

}  // namespace colossal::fold
