// T5's Hugging Face folders, as T5ForConditionalGeneration writes them.
#pragma once
#include "colossal/models/registry.h"

namespace colossal::models {

/// Returns the reader of the folders of v1.0 and v1.1 (Flan). Our positions are twice a folder's n_positions: that many
/// for source and answer each. They are only a limit of ours, because T5's positions are relative. `dropout_rate` is
/// the shape's dropout.
HuggingFace t5_folder();

}  // namespace colossal::models
