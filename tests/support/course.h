// Courses: training steps of tiny models of text, the same under every layout.
#pragma once
#include <cstdint>
#include <string>

#include "colossal/run/config.h"
#include "colossal/tensor/batch.h"
#include "colossal/train/engine.h"

namespace colossal::test {

/// What the batches of a course hold: `rows` sequences of 6 tokens, all below `vocabulary`.
struct Text {
  int64_t rows = 8, vocabulary = 43;
};

/// Part `part` of `parts` of the batch of a step: a function of `step` alone. Labels are the tokens one further on.
tensor::Batch batch_of(int64_t step, int64_t part, int64_t parts, const Text& text = {});

/// In fp64, with parameters in several chunks; 8 rows a step.
run::Config course_config();

/// A whole step on this replica's part of batch_of(step); the loss.
double train_step(train::Engine& engine, int64_t step, const Text& text = {});
/// Steps [first, last) of a course; their losses.
std::vector<double> train(train::Engine& engine, int64_t first, int64_t last, const Text& text = {});

/// Into `folder`, where that checkpoint alone stays.
void save(train::Engine& engine, const std::string& folder);
/// Goes on from the newest checkpoint in `folder`.
void load(train::Engine& engine, const std::string& folder);

/// A folder for this test that holds nothing of an earlier run of it; not made yet.
std::string empty_folder(const std::string& name);

}  // namespace colossal::test
