// Checks of the examples at the beginning of headers: a compiled source must have the same code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "colossal/base/file.h"
#include "support/paths.h"

namespace colossal::examples_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

const fs::path kSourceDir = test::source_dir();

/// Consecutive lines of code.
using CodeBlock = std::vector<std::string>;

/// Returns the line without blanks and without a comment at its end.
std::string code_of(const std::string& line) {
  bool quoted = false;
  std::string code;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"' && (i == 0 || line[i - 1] != '\\')) quoted = !quoted;
    if (!quoted && line.compare(i, 2, "//") == 0) break;
    if (line[i] != ' ' && line[i] != '\t') code += line[i];
  }
  return code;
}

std::string code_of_all(const std::string& text) {
  std::istringstream lines(text);
  std::string code;
  for (std::string line; std::getline(lines, line);) code += code_of(line);
  return code;
}

/// Returns the code in the comment at the beginning of a header: the lines with at least three blanks after the
/// slashes.
std::vector<CodeBlock> blocks_of(const std::string& header) {
  std::vector<CodeBlock> blocks(1);
  std::istringstream lines(header);
  for (std::string line; std::getline(lines, line) && line.rfind("//", 0) == 0;) {
    const std::string code = line.rfind("//   ", 0) == 0 ? code_of(line.substr(2)) : "";
    if (!code.empty()) blocks.back().push_back(code);
    if (line.rfind("//   ", 0) != 0 && !blocks.back().empty()) blocks.emplace_back();
  }
  if (blocks.back().empty()) blocks.pop_back();
  return blocks;
}

/// Checks that `source`, the code of a file, has the blocks in this order, each block in one piece. Returns the first
/// line that it does not have, or "".
std::string first_other_line(const std::vector<CodeBlock>& blocks, const std::string& source) {
  size_t from = 0;
  for (const CodeBlock& block : blocks) {
    std::string wanted;
    for (const std::string& line : block) {
      wanted += line;
      if (source.find(wanted, from) == std::string::npos) return line;
    }
    from = source.find(wanted, from) + wanted.size();
  }
  return "";
}

/// The headers that programs and new layers start from. Add the header of each new extension point.
const std::vector<std::string> kHeaders{
    "align/rollouts/appended_records.h",
    "align/rollouts/records.h",
    "auto_parallel/apply.h",
    "auto_parallel/blocks.h",
    "auto_parallel/module_plan.h",
    "auto_parallel/training.h",
    "base/html.h",
    "base/json_fields.h",
    "base/known_metrics.h",
    "base/metric.h",
    "base/own_keys.h",
    "base/step_events.h",
    "base/step_memory.h",
    "base/svg.h",
    "data/batch_fields.h",
    "infer/answer_scores.h",
    "infer/text_scorer.h",
    "infer/decoding/sampler.h",
    "infer/decoding/token_constraint.h",
    "infer/embeddings/pooling.h",
    "infer/engine.h",
    "infer/generation_defaults.h",
    "infer/generation_options.h",
    "infer/decoding/lone_runner.h",
    "infer/prompts/lines.h",
    "infer/request.h",
    "infer/decoding/step_runner.h",
    "models/folder_config.h",
    "models/model.h",
    "models/task_batch.h",
    "base/typed_parts.h",
    "nn/adapter.h",
    "nn/batch_step.h",
    "nn/low_rank.h",
    "nn/parameter.h",
    "nn/reports.h",
    "noise/flow_times.h",
    "noise/guidance.h",
    "noise/loss_weight.h",
    "noise/noise_levels.h",
    "noise/sampler.h",
    "noise/spacing.h",
    "noise/target.h",
    "ops/linear_token_scores.h",
    "ops/token_scores.h",
    "parallel/expert/config.h",
    "parallel/pipeline/transfers.h",
    "parallel/tensor/linear.h",
    "plan/cluster.h",
    "plan/cluster_costs.h",
    "plan/conversions.h",
    "plan/costs.h",
    "plan/failures.h",
    "plan/graph.h",
    "plan/log_grid.h",
    "plan/prediction.h",
    "plan/prediction_page.h",
    "plan/profile.h",
    "plan/rotor.h",
    "plan/solver.h",
    "plan/specs.h",
    "plan/stage_cut.h",
    "plan/step_picture.h",
    "plan/timeline.h",
    "plan/transfers.h",
    "predict/check.h",
    "predict/layout_price.h",
    "predict/layouts.h",
    "predict/page.h",
    "predict/rank_places.h",
    "predict/role_costs.h",
    "predict/roles.h",
    "predict/search.h",
    "predict/stage_seconds.h",
    "predict/step.h",
    "protein/alignment.h",
    "protein/comparison.h",
    "protein/fasta.h",
    "protein/geometry.h",
    "protein/residues.h",
    "protein/sequence_alignment.h",
    "protein/stereochemistry.h",
    "protein/structure.h",
    "protein/structure_reader.h",
    "protein/superposition.h",
    "report/metric_names.h",
    "report/recorded_steps.h",
    "report/step_metrics.h",
    "run/adapters.h",
    "run/external_names.h",
    "run/low_rank_keys.h",
    "run/objective.h",
    "run/own_tables.h",
    "run/program.h",
    "schedule/forward_only.h",
    "tensor/batch.h",
    "tensor/flops.h",
    "tensor/replica_rows.h",
    "text/chat_template.h",
    "text/end_tokens.h",
    "text/tokenizer.h",
    "text/verifiers/verifier.h",
    "trace/heard_call.h",
    "trace/trace.h",
    "train/first_values.h",
    "train/gathered.h",
    "train/memory_needs.h",
    "train/module_tensors.h",
    "train/run_models.h",
    "train/placed_model.h",
    "train/record_step.h",
    "train/step_reports.h",
    "train/step_rule.h",
    "train/store_options.h",
    "train/whole_tensors.h",
};

/// Returns the sources that may contain examples: all of tests/headers, and programs that a header shows completely.
std::vector<std::string> compiled_sources() {
  std::vector<std::string> sources;
  for (const char* folder : {"tests/headers", "examples/own_objective"})
    for (const auto& entry : fs::directory_iterator(kSourceDir / folder))
      if (entry.path().extension() == ".cpp") sources.push_back(code_of_all(read_file(entry.path(), 1 << 20)));
  return sources;
}

TEST(HeaderExamples, CompilesEveryExample) {
  const std::vector<std::string> sources = compiled_sources();
  for (const std::string& name : kHeaders) {
    const std::vector<CodeBlock> blocks = blocks_of(read_file(kSourceDir / "src/colossal" / name, 1 << 20));
    ASSERT_FALSE(blocks.empty()) << name << " must begin with an example";
    std::string faults;
    const bool is_compiled = std::any_of(sources.begin(), sources.end(), [&](const std::string& source) {
      const std::string line = first_other_line(blocks, source);
      if (line != blocks[0][0]) faults += "\n  " + line;  // the source has the start of the example, but not all of it
      return line.empty();
    });
    EXPECT_TRUE(is_compiled) << "src/colossal/" << name << ": tests/headers must have the lines of its example, from "
                             << blocks[0][0] << (faults.empty() ? "" : "; these differ:") << faults;
  }
}

TEST(HeaderExamples, FindsALineThatDiffers) {
  const std::string header =
      "// A page.\n//\n//   Page page;     // empty\n//   page.write(\"a // b\",\n//              1);\n//\n// "
      "Then:\n//\n"
      "//   page.close();\n#pragma once\n//   int other();\n";
  const std::vector<CodeBlock> blocks = blocks_of(header);
  EXPECT_THAT(blocks,
              ElementsAre(ElementsAre("Pagepage;", "page.write(\"a//b\",", "1);"), ElementsAre("page.close();")));
  const auto fault_in = [&](const std::string& source) { return first_other_line(blocks, code_of_all(source)); };
  EXPECT_EQ(fault_in("void f() {\n  Page page;\n  page.write(\"a // b\", 1);  // why\n  g();\n  page.close();\n}\n"),
            "");
  EXPECT_EQ(fault_in("Page page;\npage.write(\"a // b\", 2);\npage.close();\n"), "1);");
  EXPECT_EQ(fault_in("Page page;\ng();\npage.write(\"a // b\", 1);\npage.close();\n"), "page.write(\"a//b\",");
  EXPECT_EQ(fault_in("page.close();\nPage page;\npage.write(\"a // b\", 1);\n"), "page.close();");
}

}  // namespace
}  // namespace colossal::examples_test
