#include "colossal/report/report.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/cli/commands.h"
#include "colossal/run/config.h"

namespace colossal::cli {
namespace {

constexpr size_t kMaxRuns = 32;

bool is_same_folder(const std::string& a, const std::string& b) {
  std::error_code ignored;
  return a == b || std::filesystem::equivalent(a, b, ignored);
}

}  // namespace

int report(const Arguments& arguments) {
  CLI::App app(
      "Writes one self-contained HTML page on training runs: curves in one frame, samples, config keys and starts. A "
      "run may still be training.",
      "colossal report");
  std::vector<std::string> folders;
  std::string output = "report.html";
  app.add_option("runs", folders, "run folders (run.folder of the configs), at most 32")->required();
  app.add_option("--output", output, "HTML file to write")->capture_default_str();
  std::string svg;
  app.add_option("--svg", svg, "SVG file for the loss curves of at most seven runs, drawn over one another");
  parse(app, arguments);
  require(folders.size() <= kMaxRuns, "report", "a page shows at most ", kMaxRuns, " runs: got ", folders.size(),
          "; name fewer");
  for (size_t i = 0; i < folders.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      require(!is_same_folder(folders[i], folders[j]), "report", "each run must be named once: ", folders[i], " is ",
              folders[j], "; leave one of them out");
  report::Report page{.runs = {}, .defaults = to_toml(run::Config{})};
  for (const std::string& folder : folders) page.runs.push_back(report::read_run(folder));
  const std::string losses = svg.empty() ? "" : report::render_losses(page.runs);
  write_file(output, report::render_report(page));
  if (!svg.empty()) write_file(svg, losses);
  for (const report::RecordedRun& run : page.runs)
    for (const std::string& what : run.missing)
      std::fprintf(stderr, "colossal: %s: %s\n", run.name.c_str(), what.c_str());
  std::printf("wrote %s\n", output.c_str());
  if (!svg.empty()) std::printf("wrote %s\n", svg.c_str());
  return 0;
}

}  // namespace colossal::cli
