package main

import (
	"context"
	"os"

	"k8s.io/apimachinery/pkg/util/wait"
	cloudprovider "k8s.io/cloud-provider"
	cloudcontroller "k8s.io/cloud-provider/app"
	"k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	"k8s.io/cloud-provider/options"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"
	azure "sigs.k8s.io/cloud-provider-azure/pkg/provider"
)

// runCloudController runs Kubernetes' own cloud controllers with Azure's provider, as k8s.io/cloud-provider/sample does.
func runCloudController() int {
	options, err := options.NewCloudControllerManagerOptions()
	if err != nil {
		klog.Errorf("make the cloud controllers' options: %v", err)
		return 1
	}
	command := cloudcontroller.NewCloudControllerManagerCommand(options, newCloud, cloudcontroller.DefaultInitFuncConstructors,
		names.CCMControllerAliases(), flag.NamedFlagSets{}, wait.NeverStop)
	return cli.Run(command)
}

// newCloud makes Azure's provider, as its own cmd/cloud-controller-manager does. It ends the program where it cannot.
func newCloud(c *config.CompletedConfig) cloudprovider.Interface {
	cloud, err := azure.NewCloudFromConfigFile(context.Background(), c.ClientBuilder, c.ComponentConfig.KubeCloudShared.CloudProvider.CloudConfigFile,
		true)
	if err != nil {
		klog.Errorf("start Azure's cloud provider: %v", err)
		os.Exit(1)
	}
	return cloud
}
