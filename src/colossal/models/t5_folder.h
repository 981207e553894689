// T5's Hugging Face folders, as T5ForConditionalGeneration writes them.
#pragma once
#include "colossal/models/registry.h"

namespace colossal::models {

/// Reads those of v1.0 and of v1.1 (Flan). A folder's n_positions is half of our positions: of source and answer each,
/// and no more than a limit of ours, since positions are relative. `dropout_rate` is the shape's dropout.
HuggingFace t5_folder();

}  // namespace colossal::models
