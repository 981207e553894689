// The text encoders of a pipeline, with their tokenizers: where each is found, and that they fit the model.
//
//   set_text_encoders(source, "text_encoder_2=open-clip,text_encoder_3=t5-v1_1-xxl");
//   require_encoders(source);            // the model has one in each place
//   check_found_encoders(source);        // and reads what they give
#pragma once
#include <string>
#include <vector>

#include "colossal/models/shape_parts.h"
#include "colossal/run/objectives/diffusion/pipeline_folder.h"
#include "colossal/run/objectives/diffusion/pipeline_source.h"

namespace colossal::run {

/// Sets the text encoders to those of a pipeline. `may_lack`: places stay empty that the folder has no encoder for,
/// because others take them. Errors: those of PipelineFolder::at().
void take_encoders(PipelineSource& source, const PipelineFolder& folder, bool may_lack = false);

/// Returns the text encoders of a folder with a PipelineIndex. Errors ("text encoder"): it lacks one.
std::vector<CaptionSource> captions_of_index(const std::string& path, const models::DenoiserSizes& sizes);

/// Replaces text encoders by what a user names, as OtherParts::text_encoder. Errors ("text encoder"): a model that
/// reads no captions; a place that is not clear or not there; no text encoder; one without a tokenizer.
void set_text_encoders(PipelineSource& source, const std::string& from);

/// Checks that each text encoder is known and gives what the model reads. Errors: those of find_source() and
/// check_encoders().
void check_found_encoders(const PipelineSource& source);

/// Checks that the model has a text encoder in each place. Errors ("model"): it lacks one, or reads fewer tokens.
void require_encoders(const PipelineSource& source);

}  // namespace colossal::run
