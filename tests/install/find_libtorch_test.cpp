// FindLibTorch.cmake and CudaHeaders.cmake with fake torch folders: the capabilities that they detect, and the messages
// for missing ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/paths.h"
#include "support/process.h"

namespace colossal::test::find_libtorch_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

class FindLibTorch : public testing::Test {
 protected:
  void SetUp() override {
    base = testing::TempDir() + "find-" + testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(base);
    packages = base + "/env/lib/python3.11/site-packages";
    write(base + "/env/bin/python", "");
    write(torch() + "/include/torch/headeronly/version.h",
          "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 13\n#define TORCH_VERSION_PATCH 0\n");
    write(packages + "/torch-2.13.0.dist-info/METADATA",
          "Name: torch\nRequires-Dist: cuda-toolkit[cudart]==13.0.3; platform_system == \"Linux\"\n");
    library(torch() + "/lib/libc10.so", "int c10;");
    library(torch() + "/lib/libtorch_cpu.so", "int torch_cpu;");
    const std::string project = base + "/project";
    write(
        project + "/CMakeLists.txt",
        "cmake_minimum_required(VERSION 3.25)\nproject(fake CXX)\n"
        "if(POLICY CMP0144)\n  cmake_policy(SET CMP0144 NEW)\nendif()\nfind_package(Threads REQUIRED)\n"
        "list(APPEND CMAKE_MODULE_PATH " +
            source_dir() +
            "/cmake)\nfind_package(LibTorch REQUIRED)\ninclude(CudaHeaders)\n"
            "get_target_property(links LibTorch::torch INTERFACE_LINK_LIBRARIES)\nmessage(STATUS \"links: ${links}\")\n"
            "message(STATUS \"headers: ${COLOSSAL_CUDA_INCLUDE}.\")\n");
    for (const char* unit : {"comm/backends/nccl", "tensor/cuda_graph", "memory/tiers/cuda_pages"})
      write(project + "/src/colossal/" + unit + ".cpp", "#include <cuda_runtime_api.h>\n");
  }
  void TearDown() override { fs::remove_all(base); }

  /// Adds the files of a complete CUDA build: libtorch_cuda.so, which depends on another library, and headers that
  /// include each other.
  void add_cuda() const {
    library(packages + "/nvidia/cu13/lib/libcudnn_of_test.so", "int cudnn;");
    library(packages + "/nvidia/cu13/lib/libcudart.so.13", "int cudart;");
    library(torch() + "/lib/libc10_cuda.so", "int c10_cuda;");
    library(torch() + "/lib/libtorch_cuda.so", "extern int cudnn; int* torch_cuda = &cudnn;",
            {"-L" + packages + "/nvidia/cu13/lib", "-lcudnn_of_test", "-Wl,-rpath,$ORIGIN/../../nvidia/cu13/lib"});
    write(packages + "/nvidia/cu13/include/cuda_runtime_api.h", "#include <nv/target_of_test>\n");
    write(packages + "/nvidia/cu13/include/nv/target_of_test", "");
    write(packages + "/nvidia/cu13/include/nv/target", "");
    write(packages + "/nvidia/cu13/include/crt/host_config.h", "");
    write(packages + "/nvidia/nccl/include/nccl.h", "");
  }

  std::string torch() const { return packages + "/torch"; }

  static void library(const std::string& path, const std::string& source, const std::vector<std::string>& flags = {}) {
    write(path + ".cpp", source);
    std::vector<std::string> command{COLOSSAL_COMPILER,
                                     "-shared",
                                     "-fPIC",
                                     "-o",
                                     path,
                                     path + ".cpp",
                                     "-Wl,-soname," + fs::path(path).filename().string()};
    command.insert(command.end(), flags.begin(), flags.end());
    const Finished made = run_process({.command = command});
    ASSERT_EQ(made.status, 0) << made.output;
  }

  Finished configure(const std::string& choice) const {
    fs::remove_all(base + "/build");
    return run_process({.command = {COLOSSAL_CMAKE, "-G", COLOSSAL_GENERATOR, "-S", base + "/project", "-B",
                                    base + "/build", std::string("-DCMAKE_CXX_COMPILER=") + COLOSSAL_COMPILER,
                                    "-DLIBTORCH_ROOT=" + torch(), "-DCOLOSSAL_CUDA=" + choice}});
  }

  std::string base, packages;
};

TEST_F(FindLibTorch, LinksTwoLibrariesOfACpuBuild) {
  const Finished automatic = configure("AUTO");
  ASSERT_EQ(automatic.status, 0) << automatic.output;
  EXPECT_THAT(automatic.output, HasSubstr("(CUDA: OFF)"));
  EXPECT_THAT(automatic.output, HasSubstr(torch() + "/lib/libtorch_cpu.so;" + torch() + "/lib/libc10.so"));
  EXPECT_THAT(automatic.output, Not(HasSubstr("libtorch.so")));
  EXPECT_EQ(configure("OFF").status, 0);
  const Finished on = configure("ON");
  EXPECT_NE(on.status, 0);
  EXPECT_THAT(on.output, HasSubstr("this LibTorch is a CPU build"));
  EXPECT_NE(configure("MAYBE").status, 0);
}

TEST_F(FindLibTorch, UsesACompleteCudaBuild) {
  add_cuda();
  for (const char* choice : {"AUTO", "ON"}) {
    const Finished done = configure(choice);
    ASSERT_EQ(done.status, 0) << done.output;
    EXPECT_THAT(done.output, HasSubstr("(CUDA: ON)"));
    EXPECT_THAT(done.output, HasSubstr(torch() + "/lib/libtorch_cuda.so"));
    EXPECT_THAT(done.output, HasSubstr("headers: " + packages + "/nvidia/cu13/include;"));
  }
  const Finished off = configure("OFF");
  ASSERT_EQ(off.status, 0) << off.output;
  EXPECT_THAT(off.output, Not(HasSubstr("libtorch_cuda.so;")));
}

TEST_F(FindLibTorch, NamesAMissingHeaderAndItsRemedy) {
  add_cuda();
  fs::remove(packages + "/nvidia/cu13/include/nv/target_of_test");
  const Finished automatic = configure("AUTO");
  ASSERT_EQ(automatic.status, 0) << automatic.output;
  EXPECT_THAT(automatic.output, HasSubstr("(CUDA: ON)"));
  EXPECT_THAT(automatic.output, HasSubstr("headers: ."));
  EXPECT_THAT(
      automatic.output,
      HasSubstr(
          "without NCCL, CUDA graphs and page-locked host memory: missing the header nv/target_of_test; to fix it: " +
          base + "/env/bin/python -m pip install \"cuda-toolkit[cccl,crt]==13.0.3\""));
  const Finished on = configure("ON");
  EXPECT_NE(on.status, 0);
  EXPECT_THAT(on.output, HasSubstr("nv/target_of_test"));
  EXPECT_EQ(configure("OFF").status, 0);
}

TEST_F(FindLibTorch, NamesAMissingLibraryAndItsRemedy) {
  add_cuda();
  fs::remove(packages + "/nvidia/cu13/lib/libcudnn_of_test.so");
  const Finished automatic = configure("AUTO");
  ASSERT_EQ(automatic.status, 0) << automatic.output;
  EXPECT_THAT(automatic.output, HasSubstr("(CUDA: OFF)"));
  EXPECT_THAT(
      automatic.output,
      HasSubstr("libtorch_cuda.so is not linked, so GPUs are not used: missing libcudnn_of_test.so; to fix it: " +
                base + "/env/bin/python -m pip install torch==2.13.0, then cmake "));
  EXPECT_NE(configure("ON").status, 0);
  EXPECT_EQ(configure("OFF").status, 0);
}

TEST_F(FindLibTorch, RefusesATorchThatIsTooNew) {
  write(torch() + "/include/torch/headeronly/version.h",
        "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 16\n#define TORCH_VERSION_PATCH 0\n");
  const Finished done = configure("AUTO");
  EXPECT_NE(done.status, 0);
  EXPECT_THAT(done.output, HasSubstr("LibTorch must be 2.11 to 2.15: got 2.16.0"));
}

}  // namespace
}  // namespace colossal::test::find_libtorch_test
