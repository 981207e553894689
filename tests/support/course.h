// Courses: training steps of tiny text models that are the same under every layout.
#pragma once
#include <cstdint>
#include <string>

#include "colossal/run/config.h"
#include "colossal/tensor/batch.h"
#include "colossal/train/engine.h"

namespace colossal::test {

/// The contents of the batches of a course: `rows` sequences of 6 tokens, all below `vocabulary`.
struct Text {
  int64_t rows = 8, vocabulary = 43;
};

/// Returns part `part` of `parts` of the batch of a step. The batch is a function of `step`. Labels are the tokens
/// shifted by one.
tensor::Batch batch_of(int64_t step, int64_t part, int64_t parts, const Text& text = {});

/// Returns this replica's rows of batch_of(step, 0, 1), as Engine::train_step() takes them.
tensor::Batch own_batch(const train::Engine& engine, int64_t step, const Text& text = {});

/// Returns a config in fp64, with parameters in several chunks and 8 rows per step.
run::Config course_config();

/// Runs a training step on own_batch(). Returns the loss.
double train_step(train::Engine& engine, int64_t step, const Text& text = {});
/// Runs steps [first, last) of a course. Returns their losses.
std::vector<double> train(train::Engine& engine, int64_t first, int64_t last, const Text& text = {});

/// Saves a checkpoint to `folder` and removes the older ones.
void save(train::Engine& engine, const std::string& folder);
/// Resumes from the newest checkpoint in `folder`.
void load(train::Engine& engine, const std::string& folder);

/// Returns the path of a folder for this test, and removes what an earlier run left there. It does not create the
/// folder.
std::string empty_folder(const std::string& name);

}  // namespace colossal::test
